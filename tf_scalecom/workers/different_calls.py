"""Why workers wait in different collectives, as far as the calls themselves tell."""

import re
from collections.abc import Collection

_SENDER = re.compile(r", from replica \d+")
_OPERAND = re.compile(r"^\w+ of \w+ \[[^]]*\]|, size class \d+")
_GRADIENTS = ", gradients "


def advice(calls: Collection[str]) -> str:
    """What to look for.

    Args:
        calls: each worker's, in the words of `InstanceKeys.describe`.
    """
    if len({_SENDER.sub("", call) for call in calls}) == 1:
        return (
            "It is one call, and they await it from other leaders: the `iterations` of their "
            "optimizers differ. Restore or set these on all workers or on none."
        )
    places = {_OPERAND.sub("", _SENDER.sub("", call)) for call in calls}
    if len(places) == 1:
        return (
            "It is one call, with other shapes or dtypes: their models or data differ. Compare "
            "`model.summary()` and what a batch holds on each."
        )
    if all(place.startswith(_GRADIENTS) for place in places):
        return (
            "Their steps have gradients for other variables. Look for a branch on the rank or on "
            "data that leaves a part of the model out of the loss."
        )
    return (
        "Some have made a call before that others have not. Look for a branch on the rank around "
        "`fit`, `evaluate`, a variable's creation or a step of your own."
    )
