"""Rows of ten noisy classes, and a hash by which workers compare what they have trained."""

import hashlib

import numpy as np


def digest(variables):
    """A hash of all values, for comparing workers bit by bit."""
    sha = hashlib.sha256()
    for variable in variables:
        sha.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return sha.hexdigest()


def digits(samples, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, samples)
    centres = np.random.default_rng(99).normal(size=(10, 20))
    return (centres[y] + rng.normal(size=(samples, 20))).astype(np.float32), y
