"""Files that are either whole or not there, below every layer."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bdgd.checks import InputError

T = TypeVar("T")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A new name in the same folder, which takes the place of `path` at once when all is written, and is gone after a failure."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; give the name of a file in it")
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(f"cannot write {path}: {reason}; check that the folder exists, can be written to and has room") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_together(folder: str | Path, *, earlier: Sequence[str] = ()) -> Iterator[Path]:
    """A hidden folder inside `folder`, whose files move up to it when all of them are written; after a failure it is gone.

    earlier: the names that a result may have there; those that are not written again are removed, so that two results never mix.
    """
    folder = Path(folder)
    temporary = folder / f".{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir()
        yield temporary
        names = sorted(path.name for path in temporary.iterdir())
        for name in names:
            if (folder / name).is_dir():
                raise InputError(f"cannot write {folder / name}: it is a folder; move it away or choose another folder")
            _flush(temporary / name)
        for name in set(earlier) - set(names):
            (folder / name).unlink(missing_ok=True)
        for name in names:
            os.replace(temporary / name, folder / name)
        _flush(folder)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(f"cannot write to the folder {folder}: {reason}; check that it can be written to and has room") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class PatientFile(io.FileIO):
    """A file that HDF5 may always write to: a failed write is remembered for `check`.

    HDF5 cannot close a file whose last values it cannot write, and a process that ends with such a file open crashes.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        data, done = memoryview(data).cast("B"), 0
        while self.failure is None and done < len(data):
            try:
                done += super().write(data[done:])
            except OSError as error:
                self.failure = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.failure is None else self.tell()
        except OSError as error:
            self.failure = error
            return self.tell()

    def check(self) -> None:
        """Raise what kept an earlier write from the disk."""
        if self.failure is not None:
            raise self.failure


def let_go_of_files() -> None:
    """Close what an interrupt left open: HDF5 cannot close a file once Python is being taken down, and would take the process with it.

    A file that was just being opened or closed may be held by nobody, by the interrupted frames, or by HDF5 alone.
    """
    gc.collect()
    if (h5py := sys.modules.get("h5py")) is None:
        return
    for identifier in h5py.h5f.get_obj_ids(types=h5py.h5f.OBJ_FILE):
        with contextlib.suppress(Exception):  # whatever state the interrupt left it in
            h5py.File(identifier).close()  # with all its datasets


def write_text(path: str | Path, text: str) -> None:
    """The text in UTF-8, replacing what was there."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """One JSON value, indented, replacing what was there."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_kept(path: Path, what: str, use: Callable[[Any], T], otherwise: T) -> T:
    """What `use` makes of the JSON value that an earlier run kept in a file; `otherwise` where there is no such file.

    InputError, with `what` the file should have held, where it cannot be read or `use` does not find what it needs.
    """
    if not path.exists():
        return otherwise
    try:
        return use(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as {what} ({error}); delete it to make it again") from None


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows does not open folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
