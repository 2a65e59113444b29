"""An evaluator that begins one commit after the other, and finishes none."""

import signal
import sys

from gitboot.evaluator.protocol import Begun
from gitboot.frames import write_frame

if __name__ == "__main__":
    for _ in range(3):
        write_frame(sys.stdout.buffer, Begun(None))
    signal.pause()
