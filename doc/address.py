#!/usr/bin/env python3
"""Writes the project's address, which is Source in pyproject.toml, to the places that show it.

python doc/address.py           # into every `git clone` of the pages
python doc/address.py v0.1.0    # also makes the README's links absolute, for the archives of v0.1.0
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLONE = re.compile(r"(?<=git clone )\S+")
# Pictures and links that are paths in the repository.
PICTURE = re.compile(r"(\.\. image:: )(?!\w+:)")
LINK = re.compile(r"(`[^`<]*<)(?!\w+:|#)([^>`]*>`__)")


def main(tag=None, root=ROOT):
    address = source(root)
    for path in (root / "README.rst", *sorted((root / "doc").rglob("*.rst"))):
        text = path.read_text("utf-8")
        if text != (new := CLONE.sub(address, text)):
            path.write_text(new, encoding="utf-8")
    if tag is not None:
        release(address, tag, root)


def source(root=ROOT):
    with open(root / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["urls"]["Source"]


def release(address, tag, root):
    """A package index shows the README, and links of pyproject.toml, without the repository."""
    if "example.org" in address:
        sys.exit(f"pyproject.toml still has the placeholder {address} as Source; see RELEASING.rst")
    readme, project = root / "README.rst", root / "pyproject.toml"
    text = PICTURE.sub(rf"\g<1>{address}/raw/{tag}/", readme.read_text("utf-8"))
    text = LINK.sub(rf"\g<1>{address}/blob/{tag}/\g<2>", text)
    readme.write_text(text, encoding="utf-8")
    line = f'Source = "{address}"\n'
    more = f'Issues = "{address}/issues"\nChangelog = "{address}/blob/{tag}/CHANGELOG.rst"\n'
    project.write_text(project.read_text("utf-8").replace(line, line + more), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
