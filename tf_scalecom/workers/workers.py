"""The workers of a strategy, who tell each other plain values between steps."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_scalecom.workers.agreement import check_alike, compared
from tf_scalecom.workers.collectives import CollectiveLauncher

_SAME_START = "Start all workers with the same program, arguments and installed packages."


class Workers:
    """All workers of a cluster, as one of them sees them.

    The methods are collective: all workers make the same calls in the same order.

    Attributes:
        names: their tasks, e.g. ("worker 0", "worker 1").
        rank: this one's place among them; 0 is the chief.
    """

    def __init__(self, launcher: CollectiveLauncher, names: Sequence[str], rank: int):
        self._launcher = launcher
        self.names = tuple(names)
        self.rank = rank

    def gather(self, value, purpose: str) -> list:
        """Returns the values that the workers pass here, in the workers' order.

        Args:
            value: what JSON can hold.
            purpose: what the values are for, e.g. "numbers of batches". Workers that gather for
                different purposes do not meet, and an error says who waits for what.
        """
        with tf.init_scope():  # a step being traced is no place for it
            answers = self._launcher.all_gather_bytes(json.dumps(value).encode(), site=purpose)
        return [json.loads(answer) for answer in answers]

    def unlike(self, description, purpose: str) -> list | None:
        """Returns all workers' descriptions if they differ; None, for less traffic, if not.

        Args:
            description: nested dicts and lists of what JSON can hold, as for `differences`.
            purpose: as for `gather`.
        """
        if len(self.names) == 1:
            return None
        # A sum in which each worker has a place of its own: less to send, and one collective.
        digests = np.zeros(len(self.names), np.int64)
        digests[self.rank] = _digest(description)
        with tf.init_scope():
            digests = self._launcher.all_reduce(digests, site=purpose).numpy()
        return self.gather(description, purpose) if len(set(digests)) > 1 else None

    def require_alike(self, what: str, description, advice: str = _SAME_START) -> None:
        """Fails on all workers unless they all pass the same description.

        Args:
            what: the thing described, for the message.
            description: as for `unlike`.
            advice: what to do about a difference, for the message.

        Raises:
            ValueError: They differ; the message says where.
        """
        descriptions = self.unlike(description, f"comparison of {what}")
        if descriptions:
            check_alike(f"{what} on all workers", descriptions, self.names, advice)


def _digest(description):
    text = json.dumps(compared(description), sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
