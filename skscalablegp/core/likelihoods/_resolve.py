"""The parameter ``likelihood`` as an object that the model can use."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from ._base import LIKELIHOODS, Likelihood
from ._gaussian import Gaussian


def shares_covariance(likelihood: Any) -> bool:
    """Whether there may be several targets, for scikit-learn's tags; accepts invalid settings."""
    kind = LIKELIHOODS.get(likelihood, Gaussian) if isinstance(likelihood, str) else likelihood
    return bool(kind.conjugate)


def resolve_likelihood(
    likelihood: Any,
    n_outputs: int,
    *,
    classes: bool = False,
    sampled: bool = False,
    normalize_y: bool = False,
) -> Likelihood:
    """Resolve a name or an object to a Likelihood that supports the number of targets or classes.

    Parameters
    ----------
    likelihood : str or Likelihood
    n_outputs : int
        Number of targets or classes.
    classes : bool, default=False
        Whether y has classes.
    sampled : bool, default=False
        Whether the model samples basis functions, which requires a concave log p. The targets of
        such models share a covariance under any additive noise, those of others under Gaussian
        noise.
    normalize_y : bool, default=False
        The parameter of the model, which must be False for likelihoods that are not additive.

    Raises
    ------
    ValueError
        For an unknown name, or a likelihood that the model cannot use.
    """
    known = sorted(name for name, kind in LIKELIHOODS.items() if kind.classes == classes)
    if isinstance(likelihood, str):
        if likelihood not in known:
            raise ValueError(
                f"Unknown likelihood {likelihood!r}: use one of {known}, or an object."
            )
        likelihood = LIKELIHOODS[likelihood]()
    ours = clone(likelihood)
    if ours.classes != classes:
        task = "classes" if classes else "regression"
        raise ValueError(
            f"likelihood={ours!r} is not for {task}: use one of {known}, or an object."
        )
    if sampled and not ours.log_concave:
        raise ValueError(
            f"likelihood={ours!r} is not log-concave, which models of sampled basis functions "
            "need: use SVGPRegressor. A likelihood of your own that is log-concave must have the "
            "attribute log_concave = True."
        )
    if normalize_y and not ours.additive:
        raise ValueError(
            f"likelihood={ours!r} needs y in its own units, which normalize_y=True would change: "
            "use normalize_y=False."
        )
    shares = classes or (ours.additive if sampled else ours.conjugate)
    if ours.n_latent(n_outputs) > 1 and not shares:
        raise ValueError(
            f"likelihood={ours!r} supports one target, but y has {n_outputs}: wrap the model in "
            "sklearn.multioutput.MultiOutputRegressor."
        )
    return ours
