"""Files that are written completely or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(files: Mapping[Path, str | bytes]) -> None:
    """Write bytes, or texts as UTF-8: each to a temporary file in the same folder, which replaces its path at the end.

    A path that is not a regular file (a pipe, /dev/stdout) is written directly, after the others. OSError with the
    path; then every file is unchanged.
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
                path.write_bytes(_encoded(files[path]))
    finally:
        for temporary, _ in ready:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _written(path: Path, content: str | bytes) -> str:
    """Write a temporary file next to a path, with the permissions of the file or of a new one; returns its name."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(_encoded(content))
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o666 & ~mask)
    except BaseException:
        os.unlink(name)
        raise
    return name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make errors name the requested path, not the temporary file's."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
