"""Executable specification: one step of ScaleCom on n replicas, in NumPy, written for reading.

Nothing here is imported from the package. Arithmetic is float32 in the order that the text of the
algorithm gives, so that a float32 implementation must agree exactly on offsets and, up to the
order of the sum over replicas, on values.
"""

import numpy as np


def chunk_offsets(compensated, chunk_size, chunk_keep, ratio):
    """Offsets of the kept elements, chunk by chunk, by falling magnitude, ties lowest first."""
    offsets = []
    for start in range(0, len(compensated), chunk_size):
        chunk = np.abs(compensated[start : start + chunk_size])
        keep = min(chunk_keep, max(1, round(len(chunk) / ratio)))
        offsets.append(np.argsort(-chunk, kind="stable")[:keep])
    return offsets


def chunk_indices(compensated, chunk_size, chunk_keep, ratio):
    """The same as indices in the flat tensor."""
    offsets = chunk_offsets(compensated, chunk_size, chunk_keep, ratio)
    return np.concatenate([c * chunk_size + o for c, o in enumerate(offsets)])


def scalecom_step(
    residuals, gradients, leader, beta, chunk_size, chunk_keep, ratio, wire=np.float32
):
    """One step for one tensor.

    Args:
        residuals, gradients: float32 [replicas, elements].
        leader: which replica selects; or a function of residuals + gradients, what is ranked.
        wire: dtype of the values on the wire.

    Returns:
        (reduced gradient [elements], next residuals [replicas, elements], indices [kept]).
    """
    residuals = np.asarray(residuals, np.float32)
    gradients = np.asarray(gradients, np.float32)
    beta = np.float32(beta)
    compensated = residuals + gradients
    ranked = leader(compensated) if callable(leader) else compensated[leader]
    indices = chunk_indices(ranked, chunk_size, chunk_keep, ratio)
    sent = compensated[:, indices].astype(wire).astype(np.float32)

    reduced = np.zeros(compensated.shape[1], np.float32)
    reduced[indices] = sent.sum(axis=0, dtype=np.float32)

    off_set = compensated if beta == 1 else residuals + beta * gradients
    next_residuals = off_set.copy()
    unsent = compensated[:, indices] - sent
    on_set = unsent if beta == 1 else (1 - beta) * residuals[:, indices] + beta * unsent
    next_residuals[:, indices] = on_set
    return reduced, next_residuals, indices


def mixed(residuals, gradients, chunk_size, levels):
    """Gradients of a step before which residuals are made alike by pictures of themselves."""
    pictures = np.zeros_like(residuals)
    for own, picture in zip(residuals, pictures, strict=True):
        for start in range(0, len(own), chunk_size):
            chunk = own[start : start + chunk_size]
            size = np.abs(chunk)
            drawn = size > 0.7 * size.mean() if levels == 3 else np.full(len(chunk), True)
            if drawn.any():
                signs = np.where(chunk < 0, -1, 1) * drawn
                picture[start : start + chunk_size] = signs * size[drawn].mean()
    return gradients + (pictures.mean(axis=0) - pictures)


def led_by_all(compensated, step, chunk_size):
    """What is ranked where every replica leads a share: chunk c of replica (step + c) mod n."""
    elements = np.arange(compensated.shape[1])
    leaders = (step + elements // chunk_size) % len(compensated)
    return compensated[leaders, elements]
