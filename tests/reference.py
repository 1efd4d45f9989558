"""Executable specification: one step of ScaleCom on n replicas, in NumPy, written for reading.

Nothing here is imported from the package. Arithmetic is float32 in the order that the text of the
algorithm gives, so that a float32 implementation must agree exactly on offsets and, up to the
order of the sum over replicas, on values.
"""

import ml_dtypes
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
    residuals,
    gradients,
    leader,
    beta,
    chunk_size,
    chunk_keep,
    ratio,
    wire=np.float32,
    rounds_sums=False,
):
    """One step for one tensor.

    Args:
        residuals, gradients: float32 [replicas, elements].
        leader: which replica selects; or a function of residuals + gradients, what is ranked.
        wire: dtype of the values on the wire.
        rounds_sums: whether sums travel in it, too. What that takes from them stays with whoever
            sums them: each replica a run of the kept values, in 32-bit words of two.

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

    unsent = compensated.copy()
    unsent[:, indices] -= sent
    if rounds_sums:
        words = -(-(len(indices) + 1) // 2)  # a flag travels behind the values
        owners = np.arange(len(indices)) // (2 * -(-words // len(residuals)))
        travelled = reduced[indices].astype(wire).astype(np.float32)
        unsent[owners, indices] += reduced[indices] - travelled
        reduced[indices] = travelled
    next_residuals = unsent if beta == 1 else (1 - beta) * residuals + beta * unsent
    return reduced, next_residuals, indices


def pictures_of(values, chunk_size, kind):
    """Of each replica's chunks: signs with a mean magnitude, or the largest, in bfloat16."""
    pictures = np.zeros_like(values)
    for own, picture in zip(values, pictures, strict=True):
        for start in range(0, len(own), chunk_size):
            chunk = own[start : start + chunk_size]
            shown = picture[start : start + chunk_size]
            size = np.abs(chunk)
            if kind == "largest":
                shown[size.argmax()] = chunk[size.argmax()]
                continue
            drawn = np.full(len(chunk), True)
            if kind == "large_signs":
                drawn = size > 0.7 * size.mean()
            if drawn.any():
                shown[:] = np.where(chunk < 0, -1, 1) * drawn * size[drawn].mean()
    return pictures.astype(ml_dtypes.bfloat16).astype(np.float32)


def mixed(residuals, gradients, chunk_size, kind):
    """Gradients of a step before which residuals are made alike by pictures of themselves."""
    pictures = pictures_of(residuals, chunk_size, kind)
    return gradients + (pictures.mean(axis=0) - pictures)


def run_of_chunks(elements, chunk_size, replicas):
    """Which of as many runs of chunks as there are replicas each element is in."""
    chunks = -(-elements // chunk_size)
    return np.arange(elements) // chunk_size // -(-chunks // replicas)


def collected(residuals, gradients, chunk_size, chunk_keep, ratio):
    """Residuals + gradients where each run of chunks has an owner, whom the others hand theirs."""
    compensated = residuals + gradients
    owners = run_of_chunks(compensated.shape[1], chunk_size, len(compensated))
    handed = np.zeros_like(compensated)
    for replica, own in enumerate(compensated):
        indices = chunk_indices(own, chunk_size, chunk_keep, ratio)
        indices = indices[owners[indices] != replica]
        handed[replica, indices] = own[indices].astype(ml_dtypes.bfloat16)
    compensated -= handed
    elements = np.arange(compensated.shape[1])
    compensated[owners, elements] += handed.sum(axis=0)
    return compensated


def largest_blocks(compensated, signs, size):
    """What is ranked by a sketch: of each element, the signed sum of its block over all."""
    starts = np.arange(0, compensated.shape[1], size)
    sums = np.add.reduceat(signs * compensated, starts, axis=1)
    total = sums.astype(ml_dtypes.bfloat16).astype(np.float32).sum(axis=0)
    return np.repeat(total, size)[: compensated.shape[1]]


def factored(squares, shape, moment, beta_2):
    """Means over rows and columns of a matrix, decayed, and v of them, flat."""
    squares = squares.reshape(-1, shape[-1])
    rows, columns = moment
    rows = beta_2 * rows + (1 - beta_2) * squares.mean(axis=1)
    columns = beta_2 * columns + (1 - beta_2) * squares.mean(axis=0)
    return (rows, columns), (np.outer(rows, columns) / rows.mean()).ravel()


def adam_step(sums, second_moment, beta_2, step, limit):
    """Adam's step without a mean, and what of the sums is beyond a limit."""
    scale = np.sqrt(second_moment / (1 - beta_2 ** (step + 1))) + 1e-7
    step_of_all = sums / scale
    taken = np.clip(step_of_all, -limit, limit)
    return taken, np.where(taken == step_of_all, 0, sums - taken * scale)


def led_by_all(compensated, step, chunk_size):
    """What is ranked where every replica i leads run i + step of the chunks."""
    replicas, size = compensated.shape
    leaders = (run_of_chunks(size, chunk_size, replicas) - step) % replicas
    return compensated[leaders, np.arange(size)]
