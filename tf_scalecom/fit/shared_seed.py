"""What a script draws at random for its data is drawn alike on all workers.

Each worker reads all data and takes its part of every batch: where their orders differ, some
samples are trained on twice in an epoch and others not at all. So, where the user has set no seed,

* the launcher gives all workers one, from which Python's and NumPy's generators start as the
  package is imported: a split or an order drawn before the strategy is made is alike, too;
* without the launcher these two start alike as the strategy is made, if nobody has used them;
* `shuffle`, `random` and `sample_from_datasets` of a dataset get a seed of their own.

TensorFlow's global seed stays unset: with one, `tf.data` repeats in each epoch what the function
of a `map` draws, and an augmentation does the same to an image again and again. What the user seeds
is the user's, before or after: all of it by `keras.utils.set_random_seed`, or one generator alone,
such as another one on each worker.
"""

import random

from tf_scalecom.base.random_generators import GENERATORS, digests_at_import, launcher_seed
from tf_scalecom.compat.tensorflow_data import random_seeds
from tf_scalecom.compat.tensorflow_runtime import global_seed
from tf_scalecom.workers.workers import Workers

_BITS = 31

_of_datasets: random.Random | None = None
_agreed: int | None = None
_drawn_from: int | None = None
_tensorflow_get_seed = random_seeds.get_seed


def agree(workers: Workers) -> None:
    """Has all workers draw alike what the user has not seeded; a collective call."""
    global _of_datasets, _agreed
    seed = launcher_seed()
    seed = random.SystemRandom().getrandbits(_BITS) if seed is None else seed
    digests = [generator.digest() for generator in GENERATORS]
    answers = workers.gather([seed, digests], "random seeds")
    seed = answers[0][0]
    for place, generator in enumerate(GENERATORS):
        alike = all(theirs[place] == digests[place] for _, theirs in answers)
        if not alike and digests[place] == digests_at_import[place] and global_seed() is None:
            generator.seed(seed)
    _agreed = seed
    _of_datasets = random.Random(seed)
    # Where each dataset looks it up as it is made.
    random_seeds.get_seed = _get_seed


def of_datasets() -> int | None:
    """The seed of this run from which orders of datasets come; None if they need none."""
    return _drawn_from


def _get_seed(seed):
    global _drawn_from
    if seed is None and global_seed() is None:
        _drawn_from = _agreed
        seed = _of_datasets.getrandbits(_BITS)
    return _tensorflow_get_seed(seed)
