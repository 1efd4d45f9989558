"""What other pages show runs: forecasts come out as printed, custom steps as in one process."""

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from page import Page, missing

from tf_scalecom.__main__ import main

MODEL = Page("no_speed_up.md").files["my_model.py"]


@pytest.mark.parametrize("name", ["no_speed_up.md", "slow_links.md"])
def test_forecasts_are_as_shown(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` has the current folder
    (tmp_path / "my_model.py").write_text(MODEL)
    commands = [c for c in Page(name).commands if " plan " in c.line]
    assert commands
    for command in commands:
        assert main(shlex.split(command.line.removeprefix("python -m tf_scalecom "))) == 0
        printed = capsys.readouterr().out
        assert missing(command.shown, printed) == [], printed


def losses(strategy, script):
    names = {"__name__": "__main__"}
    exec(script, names)
    return names["history"]


@pytest.mark.slow
def test_a_custom_step_gives_the_numbers_of_one_process(cluster):
    script = Page("custom_steps.md").script
    alone = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport json; print(json.dumps(history))"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    expected = json.loads(alone.stdout)
    for history in cluster(2).run(losses, script, timeout=90):
        assert history.keys() == expected.keys() == {"loss", "change"}
        for name, values in history.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-4, err_msg=name)
