"""Files and folders written whole or not at all, however many processes write the same one.

Each process writes aside and renames: the last one's stands, and until then what was there before.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def write_whole(path: Path, write: Callable) -> None:
    """All of a file or none of it, on disk when this returns; `write` gets the open file."""
    with written_whole(path) as aside, aside.open("wb") as file:
        write(file)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Gives a path to write to; what is there at the end comes to `path`, after an error nothing.

    Args:
        path: of a file or folder to be; where it is to lie, there must be space for old and new. A
            new folder comes as a whole, to an old one its files and subfolders one by one, and what
            is not written anew stays. Files written beside the path come along.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    with tempfile.TemporaryDirectory(
        dir=path if path.is_dir() else path.parent, prefix=".part.", ignore_cleanup_errors=True
    ) as folder:
        aside = Path(folder)
        yield aside / path.name
        written = sorted(aside.iterdir())
        for entry in written:
            _sync(entry)
        for entry in written:
            _replace(entry, path.parent / entry.name, aside)
    _sync_one(path.parent)


def _replace(new, path, aside):
    if new.is_file():
        if path.is_file():
            shutil.copymode(path, new)
        new.replace(path)
    elif path.is_dir() or not _moved(new, path):
        # A folder that is there stays: it may be a mount, or where someone works.
        for entry in sorted(new.iterdir()):
            if entry.is_dir():
                while not _swapped(entry, path / entry.name, Path(tempfile.mkdtemp(dir=aside))):
                    pass  # another process has put its own there meanwhile
            else:
                _replace(entry, path / entry.name, aside)


def _swapped(new, path, old):
    """Puts a folder in the place of another, which goes to `old`; False if one is there again."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(old)
        shutil.copymode(old, new)
    for entry in old.iterdir():
        if not (new / entry.name).exists():
            entry.rename(new / entry.name)
    try:
        return _moved(new, path)
    except OSError:
        old.rename(path)
        raise


def _moved(new, path):
    """Renames a folder; False if there is one already."""
    try:
        new.rename(path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def _sync(path):
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
    _sync_one(path)


def _sync_one(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems know it for files alone
            raise
    finally:
        os.close(descriptor)
