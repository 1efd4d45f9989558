"""The tutorial runs as it stands, and prints what it shows."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from page import Page, missing

FOLDER = os.environ.get("TUTORIAL")
PAGE = Page("tutorial.md")


@pytest.mark.skipif(FOLDER is None, reason="takes a minute: make tutorial")
@pytest.mark.multi_worker
def test_every_command_prints_what_is_shown():
    folder = Path(FOLDER)
    PAGE.write_files(folder)
    assert len(PAGE.commands) == PAGE.text.count("```sh")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for command in PAGE.commands:
        done = subprocess.run(
            ["bash", "-c", command.line], cwd=folder, env=environment, text=True, timeout=240,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert missing(command.shown, done.stdout) == [], done.stdout
    assert (folder / "tutorial.png").stat().st_size > 10_000


def train(strategy, folder):
    with mock.patch.object(sys, "argv", ["train.py", folder, "100"]):
        trained = runpy.run_path(f"{folder}/train.py")
    return trained.get("accuracy")


@pytest.mark.slow
def test_its_script_learns_at_100x_and_its_events_are_read_back(cluster, tmp_path, capsys):
    PAGE.write_files(tmp_path)
    chief, other = cluster(2).run(train, str(tmp_path), timeout=90)
    assert chief > 0.9
    assert other is None  # only the first worker prints
    with mock.patch.object(sys, "argv", ["read_events.py", str(tmp_path)]):
        exec(PAGE.files["read_events.py"], {})
    (shown,) = (command.shown for command in PAGE.commands if "read_events" in command.line)
    assert missing(shown, capsys.readouterr().out) == []
