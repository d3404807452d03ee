"""Paths of files to write and to read, refused in one sentence before any work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def checked_target(path: Any) -> Path:
    """The path of a file to write, in a folder that exists.

    Raises
    ------
    TypeError
        For what is no path.
    FileNotFoundError, IsADirectoryError
        Without a folder to write to, and for a folder in place of a file.
    """
    checked = _path(path)
    if not checked.parent.is_dir():
        raise FileNotFoundError(
            f"path={str(checked)!r} is in a folder that does not exist: create the folder first."
        )
    return _no_folder(checked)


def checked_source(path: Any) -> Path:
    """The path of a file to read, which exists.

    Raises
    ------
    TypeError
        For what is no path.
    FileNotFoundError, IsADirectoryError
        Without the file, and for a folder in place of a file.
    """
    checked = _path(path)
    if not checked.exists():
        raise FileNotFoundError(
            f"path={str(checked)!r} does not exist: give the path to which the file was saved."
        )
    return _no_folder(checked)


def _path(path: Any) -> Path:
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise TypeError(
            f"path must be a string or a path-like object, got {path!r}: give the name of a file."
        ) from None


def _no_folder(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(f"path={str(path)!r} is a folder: give the name of a file in it.")
    return path
