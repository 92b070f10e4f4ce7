"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed into it.

A folder of several files is one unit too. It is renamed into its place as a whole, and `SUMS` in it holds the SHA-256
of every other file, so that damage is seen when it is read. What is read is of one moment: each file once, also while
another process exchanges the folder for a newer one.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from leeward.errors import ArgumentError, CheckpointError, RunDirectoryError, one_line

__all__ = [
    "LARGEST_JSON",
    "LARGEST_LOG",
    "SUMS",
    "as_cell",
    "at_home",
    "exchange",
    "from_cell",
    "is_leftover",
    "json_object",
    "naming",
    "put_back",
    "read_arrays",
    "read_bounded",
    "read_folder",
    "read_json",
    "read_lines",
    "read_object",
    "sha256",
    "write_atomically",
    "write_folder",
]

SUMS = "sha256.json"
LARGEST_JSON = 1 << 24  # bytes: text becomes twenty times as much in memory
_LARGEST_LINES = 1 << 26  # bytes of a file of lines, each an object
LARGEST_LOG = 1 << 27  # bytes of progress.csv: some 20,000 rows of one or two kB each
_EXPANSION, _ROOM = 100, 1 << 20  # a compressed file of numbers has at most so many times its size, and so many bytes
# A spreadsheet would run a text that begins so; a quote before it makes it a text, and before a quote tells them apart.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_QUOTED = tuple(f"'{sign}" for sign in _FORMULA)
_EXCHANGES = 10  # of a folder while it is read, before something else must be wrong


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def at_home(path: str | Path) -> Path:
    """A path that somebody wrote: `~` at its beginning is the home directory, also where no shell has put it in."""
    if not str(path).startswith("~"):  # asked of the text: a Path of ./~x is one of ~x
        return Path(path)
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ArgumentError(
            f"{path}: nobody of this name has a home directory here; write ./~ for a path that begins with ~ (in "
            "Python as a text, since a Path drops ./)"
        ) from None


def as_cell(name: str) -> str:
    """A name as it stands in a CSV file of ours, where no spreadsheet takes it for a formula; `from_cell` undoes it."""
    return f"'{name}" if name.startswith(_FORMULA) else name


def from_cell(cell: str) -> str:
    return cell[1:] if cell.startswith(_QUOTED) else cell


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system inside says which file it was about: a write that fails does not know by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """The old file or the new one, never half of it, of the mode that the user asked the system for."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # of a process of the same number
        _write(temporary, content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """A folder of these files and their sums: at every moment the old one or the new one is whole.

    Of the folders above it one may be missing: where more are, the run was deleted, and a husk of it would be taken for
    a whole one.
    """
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    sums = json.dumps({name: sha256(content) for name, content in files.items()}, indent=1)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, content in (*files.items(), (SUMS, f"{sums}\n".encode())):
            _write(temporary / name, content)
        _flush_folder(temporary)
        exchange(temporary, place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def exchange(new: Path, place: Path) -> None:
    """A folder that is whole takes the place of the one that is there, if one is.

    Between two renames the old one is called `.NAME.old`; `put_back` finds it if the process ends there.
    """
    old = _old(place)
    try:
        put_back(place)
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(place, old)
        os.replace(new, place)
    except BaseException:
        put_back(place)
        raise
    _flush_folder(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def put_back(place: Path) -> None:
    """If a process ended while it exchanged a folder for a newer one, the old one is at its place again.

    For whoever holds the run alone: a writer that is between its two renames must find the place empty.
    """
    old = _old(place)
    if old.is_dir() and not place.exists():
        os.replace(old, place)


def is_leftover(name: str) -> bool:
    """Whether a file or folder has the name of one that was being written or removed when its process ended."""
    hidden, dot, end = name.rpartition(".")
    return hidden.startswith(".") and len(hidden) > 1 and bool(dot) and (end.isdigit() or end in ("old", "pruned"))


def _old(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def read_folder(place: Path, names: Iterable[str]) -> tuple[dict[str, bytes], bool]:
    """These files of a folder, if they are what was written, and whether there were sums to tell by."""
    wanted = (*names, SUMS)
    for _ in range(_EXCHANGES):
        folder = _open_folder(place)
        try:
            found = {name: _content(folder, name) for name in wanted}
            return _checked(place, found)
        except CheckpointError:
            if _is_at(folder, place):
                raise
        finally:
            os.close(folder)
    raise CheckpointError(
        f"{place}: exchanged {_EXCHANGES} times while it was read; wait for the process that writes it"
    )


def _open_folder(place: Path) -> int:
    """A descriptor of the folder, or of the old one while it is exchanged: what is opened stays the same folder."""
    for path in (place, _old(place), place):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise CheckpointError(
                f"{path}: expected a folder, and no link to one; take an older one, or a copy"
            ) from None
    raise CheckpointError(f"{place}: missing; take an older one, or a copy")


def _content(folder: int, name: str) -> bytes | None:
    """A plain file of the folder; None where there is none."""
    try:
        # Not blocking: a pipe of this name would be waited for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise
        return None
    with open(descriptor, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _is_at(folder: int, place: Path) -> bool:
    """Whether a folder that is open is still the one that is read there."""
    mine = os.fstat(folder)
    for path in (place, _old(place)):
        try:
            now = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            continue
        return (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino)
    return False


def _checked(place: Path, found: dict[str, bytes | None]) -> tuple[dict[str, bytes], bool]:
    written = found.pop(SUMS)
    sums = None if written is None else read_json(place / SUMS, written)
    if sums is not None and not all(isinstance(each, str) for each in sums.values()):
        raise CheckpointError(
            f"{place / SUMS}: damaged, expected names and their SHA-256; take an older one, or a copy"
        )
    whole: dict[str, bytes] = {}
    for name, content in found.items():
        if content is None:
            raise CheckpointError(f"{place / name}: missing; take an older one, or a copy")
        if sums is not None and sums.get(name) != sha256(content):
            raise CheckpointError(
                f"{place / name}: damaged, it is not what was written ({len(content)} bytes of another SHA-256 than "
                f"{SUMS} says); take an older one, or a copy"
            )
        whole[name] = content
    return whole, sums is not None


def json_object(content: bytes, *, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """An object of JSON that is no larger and no deeper than ours are; ValueError says what it is instead."""
    if len(content) > largest:
        raise ValueError(f"more than {largest:,} bytes")
    try:
        text = content.decode("utf-8")
        value = json.loads(text)
        if "\\u" in text:  # an escape may be half of a pair, which is no text and cannot be written anywhere
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def read_bounded(path: Path, largest: int) -> bytes:
    """A file of a run, unless it is larger than ours ever are."""
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise RunDirectoryError(f"{path}: more than {largest:,} bytes, so it is not what a run wrote; move it away")
    return content


def read_object(path: Path) -> dict[str, Any]:
    """The object that is all of a file; ValueError says what it is instead."""
    with path.open("rb") as file:
        return json_object(file.read(LARGEST_JSON + 1))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file with an object on each line. Half a line at its end is what a killed process was about to write: it is
    left out."""
    *lines, last = read_bounded(path, _LARGEST_LINES).split(b"\n")
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found += [json_object(line)] if line.strip() else []
        except ValueError as error:
            raise RunDirectoryError(f"{path} line {number}: {error}; restore the file from a copy") from None
    try:
        return [*found, json_object(last)] if last.strip() else found
    except ValueError:
        return found


def read_json(path: Path, content: bytes) -> dict[str, Any]:
    """The object in a file of a checkpoint."""
    try:
        return json_object(content)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged, {error}; take an older one, or a copy") from None


def read_arrays(path: Path) -> dict[str, "np.ndarray[Any, Any]"]:
    """The arrays of an .npz file without pickles; whatever else it is raises ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:
            expanded = sum(entry.file_size for entry in archive.infolist())
        if expanded > _EXPANSION * path.stat().st_size + _ROOM:
            raise ValueError(f"expands to {expanded:,} bytes")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        hollow = [name for name, array in arrays.items() if not array.dtype.itemsize]
        if hollow:  # of cells without a byte a file may have as many as it says
            raise ValueError(f"the cells of {hollow[0]!r:.40} have no bytes")
        return arrays
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, LookupError, RuntimeError, TypeError,
            SyntaxError, tokenize.TokenError, MemoryError) as error:  # fmt: skip
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _write(path: Path, content: bytes) -> None:
    # A new file always: one that stands there could be a link to something else.
    with naming(path), path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
