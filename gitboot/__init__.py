"""gitboot: what bare-metal servers boot, decided in Git."""

__version__ = "0.2.0"
