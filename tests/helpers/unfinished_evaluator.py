"""An evaluator that begins one commit after the other, and finishes none."""

import signal
import sys

from gitboot.child_processes import write_frame
from gitboot.evaluator.protocol import Begun

if __name__ == "__main__":
    for _ in range(3):
        write_frame(sys.stdout.buffer, Begun(None))
    signal.pause()
