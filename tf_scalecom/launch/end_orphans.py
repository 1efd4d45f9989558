"""`python end_orphans.py`: kill the process groups named on stdin, if whoever names them dies.

The kernel ends a worker whose launcher is gone (`die_with_parent.py`), but not what the worker has
started. One number a line; a last line of 0 says that there is nothing left to do. Imports nothing
of the package: it costs 20 ms.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Reads to the last word, or to the end that comes with the other's, and then kills."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # for those who can still clean up themselves
    groups = []
    for line in sys.stdin:
        groups.append(int(line))
        if groups[-1] == 0:
            return
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
