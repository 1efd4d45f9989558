"""`python die_with_parent.py PARENT_PID PROGRAM [ARG...]`: become PROGRAM, but end with the parent.

The kernel kills the process as soon as the parent's thread that started it is gone, even by
SIGKILL: a hung TensorFlow worker would otherwise outlive its launcher for ever. The request
survives `exec`, so it is made here, in a program of its own, and not between fork and exec of a
parent that may have TensorFlow's threads. Imports nothing of the package: it costs 20 ms.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(parent_pid: int, command: list[str]) -> None:
    """Ask for the death signal, then replace this process by `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before the request was made
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
