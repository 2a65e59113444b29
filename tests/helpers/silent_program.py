"""A process that reads nothing of what it is sent."""

import signal

if __name__ == "__main__":
    signal.pause()
