"""gitboot: a controller that uses a Git repository to decide what bare-metal servers boot."""

__version__ = "0.2.0"
