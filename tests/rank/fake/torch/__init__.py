"""A package that looks like torch to the guest, for Pythons and versions that have no torch here."""

import torch.version

__version__ = torch.version.__version__

import torch.distributed
