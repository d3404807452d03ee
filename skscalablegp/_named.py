"""Settings that a string can name, such as solver="cg", with searchable nested parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from ._compat import ParametersInDiagrams


def keep_settings(settings: Any, arguments: dict[str, Any]) -> None:
    """Keep a constructor's arguments, its ``locals()``, under their own names."""
    for name, value in arguments.items():
        if name not in ("self", "__class__"):
            setattr(settings, name, value)


def changed_parameters(owner: Any) -> tuple[str, ...]:
    """Names of the parameters that differ from the defaults of the owner's constructor."""
    return tuple(
        name
        for name, value in owner.get_params(deep=False).items()
        if not _is_default(owner, name, value)
    )


@cache
def _arguments(kind: type) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class's constructor; every report of a fit asks for all of them."""
    return inspect.signature(kind.__init__).parameters


def _is_default(owner: Any, name: str, value: Any) -> bool:
    """Whether a parameter of a constructor has its default."""
    parameter = _arguments(type(owner)).get(name)
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return False
    default = parameter.default
    if value is default:
        return True
    return type(value) is type(default) and np.array_equal(value, default)


def named(
    what: str,
    value: Any,
    known: Mapping[str, Callable[..., Any]],
    others: str,
    *args: Any,
    kinds: Any = object,
    more: tuple[str, ...] = (),
    **settings: Any,
) -> Any:
    """The object that a string names; other objects are returned unchanged.

    Parameters
    ----------
    what : str
        Name of the parameter, for the message.
    value : str or object
        The user's value.
    known : mapping of str to callable
        For each name, the function that makes the object from ``*args`` and ``**settings``.
    others : str
        Description of the other accepted values, for the message.
    kinds : type
        Accepted types of objects.
    more : tuple of str
        Further names, which the caller resolves itself; for the message.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    if isinstance(value, str) and value in known:
        return known[value](*args, **settings)
    if isinstance(value, str) or not isinstance(value, kinds):
        listed = ", ".join(repr(name) for name in (*more, *sorted(known)))
        raise ValueError(f"Unknown {what} {value!r}: use one of {listed}, {others}.")
    return value


class NamedSettings(ParametersInDiagrams, BaseEstimator):
    """Parameters whose strings stand for objects, so that ``truncation__rate`` works for both.

    A subclass lists them in `_named`, each with a function from strings to objects. The function
    returns None or raises a ValueError for a string that names no object, such as "auto", and the
    string is then kept.
    """

    _named: ClassVar[dict[str, Callable[[str], Any]]] = {}

    def _object(self, name: str, value: Any) -> Any:
        """The object that a string names, or the value itself."""
        if not isinstance(value, str):
            return value
        try:
            made = self._named[name](value)
        except ValueError:
            return value
        return value if made is None else made

    def _shown_parameters(self) -> dict[str, bool]:
        """The parameters that a diagram lists, and whether the user set them.

        Parameters of an object that a string stands for are not listed.
        """
        given = self.get_params(deep=True)
        shown = {}
        for name, value in given.items():
            inside, _, last = name.rpartition("__")
            if isinstance(given.get(name.partition("__")[0]), str) and inside:
                continue
            shown[name] = not _is_default(given.get(inside, self), last, value)
        return shown

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also those of objects, whether a string names them or not.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include nested parameters such as ``solver__preconditioner``.

        Returns
        -------
        params : dict
        """
        params = super().get_params(deep=deep)
        if deep:
            for name in self._named:
                made = self._object(name, params.get(name))
                if made is not params.get(name) and hasattr(made, "get_params"):
                    inner = made.get_params(deep=True)
                    params |= {f"{name}__{key}": value for key, value in inner.items()}
        return params

    def set_params(self, **params):
        """Set all parameters or none; a nested parameter replaces a string by the object it names.

        Parameters
        ----------
        **params : dict
            For example ``solver="cg"`` or ``solver__preconditioner__rank=100``.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            For an unknown parameter; all parameters then keep their values.
        """
        plain = {key: value for key, value in params.items() if "__" not in key}
        nested = {key: value for key, value in params.items() if "__" in key}
        objects = {key.partition("__")[0] for key in nested}
        before = {name: getattr(self, name) for name in self._get_param_names()}
        given = {name: before.get(name) for name in objects}
        inside = {n: part.get_params() for n, part in given.items() if hasattr(part, "get_params")}
        try:
            super().set_params(**plain)
            for name in objects & set(self._named) & set(before):
                setattr(self, name, self._object(name, getattr(self, name)))
            return super().set_params(**nested)
        except ValueError:
            super().set_params(**before)
            for name, kept in inside.items():
                before[name].set_params(**kept)
            raise
