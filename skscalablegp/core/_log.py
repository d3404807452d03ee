"""The log of fits, which is silent by default."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

LOGGER = logging.getLogger("skscalablegp")


class FitLog(logging.LoggerAdapter):
    """Messages of one fit, each preceded by the names of the estimators whose fits are under way.

    Parameters
    ----------
    names : tuple of str
        From the outermost estimator to the one that is being fitted.
    """

    def __init__(self, names: tuple[str, ...]):
        super().__init__(LOGGER, {})
        self._path = " > ".join(names)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._path}: {msg}", kwargs
