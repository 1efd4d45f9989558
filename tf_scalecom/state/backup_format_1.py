"""What backups of format 1 hold, in the form of today's.

They knew one optimizer, and counted the model's variables among those of a `ScaleComOptimizer`,
unless a `LossScaleOptimizer` was around it.
"""

from collections.abc import Mapping

from tf_scalecom.workers.agreement import optimizer_classes


def in_todays_form(content: Mapping) -> dict:
    """The content of a `backup.json` of format 1, as one of format 2 would be.

    Returns:
        With one more field, "names": name of a variable today -> name in the workers' files.
    """
    variables = content["variables"]
    names = {name: name for name in variables if not name.startswith("optimizer.")}
    held = [name for name in variables if name not in names]
    if optimizer_classes(content["optimizer"])[0] == "ScaleComOptimizer":
        # Between its count of skipped steps and the inner optimizer's, of iterations.
        is_count = [variables[name] == {"shape": [], "dtype": "int64"} for name in held]
        held = held[:1] + held[is_count.index(True, 1) :]
    names |= {f"optimizer.{i}": name for i, name in enumerate(held)}
    return {
        **content,
        "variables": {today: variables[name] for today, name in names.items()},
        "optimizers": {"optimizer": {"config": content["optimizer"], "variables": None}},
        "residuals": [{"residual": count} for count in content["residuals"]],
        "names": names,
    }
