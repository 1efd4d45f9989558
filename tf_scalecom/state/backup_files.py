"""The files of a backup: written whole or not at all, and read only as they were written.

`backup.json` holds what was backed up (its "content"), the digests of the workers' files among it:

    {"format": 2, "tf_scalecom": version, "digest": of the content, "content": {...}}

Format 1 is read too (`backup_format_1`).
"""

import hashlib
import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tf_scalecom.base.whole_files import write_whole
from tf_scalecom.state.backup_format_1 import in_todays_form
from tf_scalecom.state.training_state import State, group_of
from tf_scalecom.version import __version__

_FORMAT = 2

# Of a file in a zip archive, before its name: the lengths of the name and of what comes after it.
_ZIP_HEADER = struct.Struct("<26xHH")
# The most that the header of an array has.
_NPY_HEADER_BYTES = 10 + (1 << 16)


def digest(data: bytes) -> str:
    """A short fingerprint of bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def write_meta(path: Path, content: dict) -> None:
    """Writes `backup.json`.

    Args:
        path: the file.
        content: what JSON can hold.
    """
    content = json.loads(json.dumps(content))  # keys are strings from here on
    meta = {
        "format": _FORMAT,
        "tf_scalecom": __version__,
        "digest": _digest_of_content(content),
        "content": content,
    }
    write_whole(path, lambda file: file.write(json.dumps(meta, indent=1).encode()))


def read_meta(path: Path) -> dict:
    """The content that `write_meta` wrote.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is not as it was written, or of a version that wrote others.
    """
    try:
        meta = json.loads(path.read_bytes())
        fields = sorted(meta) if isinstance(meta, dict) else type(meta).__name__
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: expected JSON, received none ({error})") from error
    if not isinstance(meta, dict) or "format" not in meta:
        raise ValueError(
            f"{path.name}: expected an object with a field 'format', received {fields}; it is "
            "damaged, or another program's"
        )
    if meta["format"] not in (1, _FORMAT):
        raise ValueError(
            f"{path.name}: expected format {_FORMAT} of a backup, received {meta['format']!r} of "
            f"tf_scalecom {meta.get('tf_scalecom')}; restart with that version"
        )
    content = meta.get("content", {})
    if meta.get("digest") != _digest_of_content(content):
        raise ValueError(
            f"{path.name}: expected a content of digest {meta.get('digest')}, received another "
            f"(the file's fields: {fields}); it is damaged or was edited"
        )
    return in_todays_form(content) if meta["format"] == 1 else content


def write_shard(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes one worker's file; returns its digest."""
    write_whole(path, lambda file: np.savez(file, **_plain(arrays)))
    return _digest_of_file(path)


class Shards:
    """The files of some workers; what one does not have is the chief's.

    Values lie in the files: whoever wants them copies them while the backup is there.

    Args:
        paths: worker's number -> file; that of worker 0, the chief, is among them.
        digests: of the files as they were written, by number.
        names: name of a variable -> its name in the files, where that is another.

    Raises:
        OSError: A file is not there, or cannot be read.
        ValueError: It is not as it was written.
    """

    def __init__(
        self, paths: Mapping[int, Path], digests: Mapping[int, str], names: Mapping[str, str]
    ):
        self._names = names
        for rank, path in paths.items():
            if _digest_of_file(path) != digests[rank]:
                raise ValueError(
                    f"{path.name}: expected a file of digest {digests[rank]}, received another of "
                    f"{path.stat().st_size} bytes; it is damaged or of another backup"
                )
        self._files = {rank: _arrays_in(path) for rank, path in paths.items()}

    def state(self, rank: int, like: State) -> State:
        """The state of one worker."""
        return {
            name: kept._replace(
                parts=[self._part(rank, i, name, part.dtype) for i, part in enumerate(kept.parts)]
            )
            for name, kept in like.items()
        }

    def spread(
        self, old: Sequence[Mapping[str, int]], like: State, new: Sequence[Mapping[str, int]]
    ) -> State:
        """The state of other replicas, which share the sums of what is summable.

        Args:
            old, new: of each worker, group of summable variables -> how many of each it has.
            like: state of the worker that asks.
        """

        def part(name, kept):
            dtype = kept.parts[0].dtype
            if not kept.summable:
                return self._part(0, 0, name, dtype)
            group = group_of(name)
            every = (
                self._part(rank, replica, name, dtype).astype(np.float64)
                for rank, counts in enumerate(old)
                for replica in range(counts[group])
            )
            return (sum(every) / sum(counts[group] for counts in new)).astype(dtype)

        return {
            name: kept._replace(parts=[part(name, kept)] * len(kept.parts))
            for name, kept in like.items()
        }

    def _part(self, rank, replica, name, dtype):
        for file, place in ((self._files[rank], replica), (self._files[0], 0)):
            key = f"{self._names.get(name, name)}/{place}"
            if key in file:
                return _typed(file[key], dtype)
        raise ValueError(f"expected a variable {name} in the backup, received one without it")


def _digest_of_content(content):
    return digest(json.dumps(content, sort_keys=True).encode())


def _digest_of_file(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def _arrays_in(path) -> dict[str, np.ndarray]:
    """The arrays of a file, in place.

    `np.load` would copy them into new memory, which takes longer than to look through the file.
    """
    data = np.asarray(np.memmap(path, mode="c"))
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename.removesuffix(".npy"): _array_at(data, info) for info in archive.infolist()
        }


def _array_at(data, info):
    begin = info.header_offset + _ZIP_HEADER.size
    begin += sum(_ZIP_HEADER.unpack_from(data, info.header_offset))
    header = io.BytesIO(data[begin : begin + _NPY_HEADER_BYTES])
    np.lib.format.read_magic(header)
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(header)
    array = np.frombuffer(data, dtype, math.prod(shape), begin + header.tell())
    return array.reshape(shape, order="F" if by_columns else "C")


# NumPy's files know neither bfloat16 nor float8: such arrays are kept as integers of their size.


def _plain(arrays):
    return {
        key: a.view(f"u{a.dtype.itemsize}") if a.dtype.kind == "V" else a
        for key, a in arrays.items()
    }


def _typed(array, dtype):
    return array.view(dtype) if np.dtype(dtype).kind == "V" else array
