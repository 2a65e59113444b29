"""gitboot: a controller that decides from a Git repository what bare-metal servers boot."""

__version__ = "0.2.0"
