"""allranks finds why a multi-process PyTorch training job hangs, crashes or silently trains wrong."""

__version__ = "0.1.0"
