"""Which folders are backups of this package, and what of them may be deleted.

    folder/
      backup-00000007/
        tf_scalecom-backup.txt     the mark, there before anything else
        ...

A backup is a folder of such a name with a mark that repeats it: a copy under another name is the
user's. Of a backup only the files that were written into it are deleted. In format 1 a backup was a
folder `00000007` without a mark; it is deleted only if its `backup.json` is as it was written.
"""

import contextlib
import functools
import re
from pathlib import Path

from absl import logging

from tf_scalecom.base.whole_files import write_whole
from tf_scalecom.state.backup_files import read_meta

META = "backup.json"
_MARK = "tf_scalecom-backup.txt"
_PREFIX = "backup-"
_MARKED_NAME = re.compile(rf"{_PREFIX}[0-9]{{8,}}")
_EARLIER_NAME = re.compile(r"[0-9]{8,}")
_OUR_FILES = re.compile(rf"(worker-[0-9]+\.npz|{re.escape(META)})(\.part)?")


def shard(place: Path, rank: int) -> Path:
    """The file of one worker in a backup."""
    return place / f"worker-{rank}.npz"


def number(place: Path) -> int:
    """The backups of a folder are counted; a later one has a higher number."""
    return int(place.name.removeprefix(_PREFIX))


def create(folder: Path) -> Path:
    """A new backup with nothing but its mark in it.

    Raises:
        OSError: It cannot be made; then there is nothing left of it.
    """
    taken = [p for p in _entries(folder) if _MARKED_NAME.fullmatch(p.name) or _is_earlier(p)]
    place = folder / f"{_PREFIX}{1 + max(map(number, taken), default=0):08d}"
    place.mkdir(parents=True)
    try:
        _write_mark(place)
    except BaseException:
        with contextlib.suppress(OSError):
            place.rmdir()
        raise
    return place


def backups(folder: Path) -> list[Path]:
    """All that are to be taken for backups, complete or not."""
    return [place for place in _entries(folder) if _is_marked(place) or _is_earlier(place)]


def complete(folder: Path) -> list[Path]:
    """Those that can be restored."""
    return [place for place in backups(folder) if (place / META).exists()]


def discard(place: Path) -> None:
    """Deletes a backup: what was written into it, and the folder if that leaves it empty."""
    try:
        if not _is_marked(place):
            read_meta(place / META)  # is it ours without doubt?
            _write_mark(place)
        ours = [file for file in place.iterdir() if _OUR_FILES.fullmatch(file.name)]
        # First what makes it a complete one.
        for file in sorted(ours, key=lambda file: file.name):
            file.unlink(missing_ok=True)
        foreign = sorted(file.name for file in place.iterdir() if file.name != _MARK)
        if foreign:
            _say_left(place, foreign[0])
            return
        (place / _MARK).unlink()
        place.rmdir()
    except (OSError, ValueError):
        pass  # it stays, marked or not; the next one that is complete is what counts


@functools.cache
def _say_left(place, file):
    logging.warning("tf_scalecom: %s stays: there is %s in it, which is no backup's.", place, file)


def _entries(folder):
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_marked(place):
    named = _MARKED_NAME.fullmatch(place.name) or _EARLIER_NAME.fullmatch(place.name)
    try:
        return bool(named) and (place / _MARK).read_text().splitlines()[:1] == [place.name]
    except (OSError, ValueError):
        return False


def _is_earlier(place):
    """Whether it looks like a complete backup of format 1, as a date's folder does not."""
    named = _EARLIER_NAME.fullmatch(place.name)
    return bool(named) and (place / META).is_file() and shard(place, 0).is_file()


def _write_mark(place):
    mark = f"{place.name}\nA backup of training by tf_scalecom, which deletes it after the next.\n"
    write_whole(place / _MARK, lambda file: file.write(mark.encode()))
