"""Untrusted JSON, read with limits: the cost of a text is known before it is parsed."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ._errors import ModelFileError

# Largest text in bytes, and how many values a text may have. One value takes up to about 250 bytes
# of memory. A file may have one more for each 200 bytes of its size, as models of many parts need.
MOST_BYTES, MOST_VALUES, BYTES_A_VALUE = 2**24, 200_000, 200


def parse(text: bytes, what: str, file_size: int) -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    text : bytes
        Of ASCII characters: a single other one would make Python's string four times as long.
    what : str
        What the text is, for messages.
    file_size : int
        The size of the file that contains it.

    Raises
    ------
    ModelFileError
        For a text that is no JSON, repeats a key, has NaN or infinity, or is too large.
    """
    values = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    if len(text) > MOST_BYTES or values > MOST_VALUES + file_size // BYTES_A_VALUE:
        raise ModelFileError(f"{what} is too large: {len(text):,} bytes with {values:,} values")
    if not text.isascii():
        raise ModelFileError(f"{what} is not ASCII")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise ModelFileError(f"{what} is nested too deeply") from None
    except ModelFileError as error:
        raise ModelFileError(f"{what} {error}") from None
    except ValueError as error:
        raise ModelFileError(f"{what} is not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ModelFileError("has the same key twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ModelFileError(f"contains {text}")
