"""Downloads whose checksums are verified, and which never leave partial files."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path

TIMEOUT_SECONDS = 60
# Larger than any published file, so that a faulty server cannot fill the disk.
MOST_BYTES = 500_000_000


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise OSError, naming both sums, unless the file has the expected one."""
    found = sha256(path)
    if found != expected:
        raise OSError(
            f"{path} is not the published file: its SHA-256 is {found}, expected {expected}."
        )


def fetch_file(url: str, path: Path, expected: str, *, download: bool) -> Path:
    """Return ``path`` with the published content, which is downloaded if it is missing.

    A cached file with another checksum is replaced, with a warning. A download has a temporary name
    until its checksum is verified, so that neither an interruption nor a second process leaves a
    partial file. A download of more than `MOST_BYTES` is an OSError.
    """
    if path.exists():
        try:
            check_sha256(path, expected)
            return path
        except OSError as error:
            if not download:
                raise
            warnings.warn(f"{error} Downloading it again.", UserWarning, stacklevel=3)
    elif not download:
        raise OSError(f"{path} does not exist and download_if_missing=False.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _copy_url(url, file)
        check_sha256(part, expected)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _copy_url(url, file):
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            while block := response.read(1 << 20):
                if file.tell() + len(block) > MOST_BYTES:
                    raise OSError(
                        f"{url} sends more than {MOST_BYTES:,} bytes, which no published file has."
                    )
                file.write(block)
    except (urllib.error.URLError, TimeoutError) as error:
        raise OSError(
            f"Could not download {url} ({error}). Without a network, name a folder that has the "
            "files as uci/NAME/data.csv.gz and uci/NAME/test_mask.csv.gz in the environment "
            "variable SKSCALABLEGP_DATA."
        ) from error
