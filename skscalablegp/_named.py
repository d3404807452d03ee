"""Settings that may be named by a string, such as solver="cg", and searched into all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sklearn.base import BaseEstimator


def keep_settings(settings: Any, arguments: dict[str, Any]) -> None:
    """Keep a constructor's arguments, its ``locals()``, under their own names."""
    for name, value in arguments.items():
        if name not in ("self", "__class__"):
            setattr(settings, name, value)


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
    """What a name in a table stands for; objects come back as they are.

    Parameters
    ----------
    what : str
        The parameter, for the message.
    value : str or object
        What a user may write.
    known : mapping of str to callable
        What makes an object of each name, given the further arguments.
    others : str
        What else may be written, for the message.
    kinds : type
        Of objects; others are refused.
    more : tuple of str
        Names that the caller resolves by itself, for the message.

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


class NamedSettings(BaseEstimator):
    """Parameters whose strings stand for objects: ``truncation__rate`` works from a string, too.

    A subclass lists them in `_named`, each with the function that makes an object of a string; a
    string that stands for no object yet, such as "auto", is left alone (ValueError or None).
    """

    _named: ClassVar[dict[str, Callable[[str], Any]]] = {}

    def _object(self, name: str, value: Any) -> Any:
        """The object that a string stands for, else the value itself."""
        if not isinstance(value, str):
            return value
        try:
            made = self._named[name](value)
        except ValueError:
            return value
        return value if made is None else made

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also those of objects, named by strings or given.

        Parameters
        ----------
        deep : bool, default=True
            Whether ``solver__preconditioner`` and the like are among them.

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

    def set_params(self, **params: Any):
        """Set parameters, all or none; one of an object that a string names makes the object first.

        Parameters
        ----------
        **params : dict
            Such as ``solver="cg"`` and ``solver__preconditioner__rank=100``.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            For a parameter that there is not; nothing has changed then.
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
