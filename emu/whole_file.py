"""Files that are there whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(files: Mapping[Path, str]) -> None:
    """Write texts as UTF-8, each to a temporary file beside its path, which takes its place when all are written.

    What is no regular file (a pipe, /dev/stdout) is written to directly, after the others. OSError with the path; then
    every file is as it was.
    """
    ready: list[tuple[str, Path]] = []
    direct = [path for path in files if path.exists() and not path.is_file() and not path.is_dir()]
    try:
        for path, text in files.items():
            if path not in direct:
                with _naming(path):
                    ready.append((_written(path.resolve(), text), path))
        for temporary, path in ready:
            with _naming(path):
                os.replace(temporary, path.resolve())
        for path in direct:
            with _naming(path):
                path.write_text(files[path], encoding="utf-8")
    finally:
        for temporary, _ in ready:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _written(path: Path, text: str) -> str:
    """The name of a temporary file beside a path, with a text in it and the rights of a new file."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o666 & ~mask)
    except BaseException:
        os.unlink(name)
        raise
    return name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors name the path that was asked for, not the temporary file's."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
