"""Files that are written whole or not at all."""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_whole(files: Mapping[Path, str]) -> None:
    """Write some files, or, on any error, none: all are written beside their places first. OSError names the file."""
    with ExitStack() as undo:
        written: list[tuple[str, Path]] = []
        for path, text in files.items():
            target = path.resolve()  # a link stays one
            try:
                if target.is_dir():
                    raise IsADirectoryError(21, os.strerror(21))
                if target.exists() and not os.access(target, os.W_OK):
                    raise PermissionError(13, os.strerror(13))
                with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
                    undo.callback(_remove, file.name)
                    file.write(text)
                mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
                os.chmod(file.name, mode)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
            written.append((file.name, target))
        for name, target in written:
            os.replace(name, target)


def _remove(name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
