"""matplotlib, which is an extra: where it is not installed there are no pictures."""

import functools


@functools.cache
def pyplot():
    """matplotlib's, drawing into files; None where it is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
