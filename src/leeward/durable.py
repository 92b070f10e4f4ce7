"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed into it.

A folder of several files is one unit too. It is renamed into its place as a whole, and `SUMS` in it holds the SHA-256
of every other file, so that damage is seen when it is read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from leeward.errors import CheckpointError

__all__ = ["SUMS", "naming", "put_back", "read_checked", "sha256", "sums_of", "write_atomically", "write_folder"]

SUMS = "sha256.json"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
        _write(temporary, content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """A folder of these files and their sums: at every moment the old one or the new one is whole.

    Between two renames the old one is called `.NAME.old`; `put_back` finds it if the process ends there.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = place.with_name(f".{place.name}.{os.getpid()}"), _old(place)
    sums = json.dumps({name: sha256(content) for name, content in files.items()}, indent=1)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, content in (*files.items(), (SUMS, f"{sums}\n".encode())):
            _write(temporary / name, content)
        _flush_folder(temporary)
        put_back(place)
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(place, old)
        os.replace(temporary, place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        put_back(place)
        raise
    _flush_folder(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def put_back(place: Path) -> None:
    """If a process ended while it exchanged a folder for a newer one, the old one is at its place again."""
    old = _old(place)
    if old.is_dir() and not place.exists():
        os.replace(old, place)


def _old(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def sums_of(place: Path) -> dict[str, str] | None:
    """The sums of a folder's files; None where there are none."""
    path = place / SUMS
    if not path.is_file():
        return None
    try:
        sums = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, not JSON ({error}); take an older one, or a copy") from None
    if not isinstance(sums, dict) or not all(isinstance(each, str) for each in sums.values()):
        raise CheckpointError(f"{path}: damaged, expected names and their SHA-256; take an older one, or a copy")
    return sums


def read_checked(path: Path) -> bytes:
    """A file of a folder, if it is what was written; one without sums is read as it is."""
    sums = sums_of(path.parent)
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; take an older one, or a copy")
    content = path.read_bytes()
    if sums is not None and sums.get(path.name) != sha256(content):
        raise CheckpointError(
            f"{path}: damaged, it is not what was written ({len(content)} bytes of another SHA-256 than {SUMS} says); "
            "take an older one, or a copy"
        )
    return content


def _write(path: Path, content: bytes) -> None:
    with naming(path), path.open("wb") as file:
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
