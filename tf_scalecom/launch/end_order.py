"""The order in which processes end, of which whoever looks now and then sees several at once."""

import contextlib
import os
import threading
from collections.abc import Sequence


class EndOrder:
    """Notes the order in which child processes end.

    Args:
        pids: process ids of the children, of whom none has been waited for yet.
    """

    def __init__(self, pids: Sequence[int]):
        self._ended: list[int] = []
        self._threads = {
            pid: threading.Thread(target=self._note, args=[pid], daemon=True) for pid in pids
        }
        for thread in self._threads.values():
            thread.start()

    def place(self, pid: int) -> int:
        """The place among the others of one that has ended, from 0."""
        self._threads[pid].join()
        return self._ended.index(pid)

    def _note(self, pid):
        with contextlib.suppress(ChildProcessError):  # it has been waited for just now
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._ended.append(pid)
