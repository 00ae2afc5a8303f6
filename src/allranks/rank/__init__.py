"""The guest: the recorder that lives in the user's process.

Standard library only, Python 3.8 and newer. It is loaded from its own folder under a private name, never raises
into user code, never blocks, and falls silent after an error of its own or when the host is gone.
"""
