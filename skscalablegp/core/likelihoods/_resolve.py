"""A user's ``likelihood=`` as an object that the model can take."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from ._base import Likelihood
from ._bernoulli import Bernoulli
from ._gaussian import Gaussian
from ._laplace import Laplace
from ._softmax import Softmax
from ._student_t import StudentT

NAMES: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "laplace": Laplace,
    "bernoulli": Bernoulli,
    "softmax": Softmax,
}


def shares_covariance(likelihood: Any) -> bool:
    """Whether targets may be several: a tag, which settings that `fit` refuses have as well."""
    kind = NAMES.get(likelihood, Gaussian) if isinstance(likelihood, str) else likelihood
    return bool(kind.conjugate)


def resolve_likelihood(
    likelihood: Any,
    n_outputs: int,
    *,
    classes: bool = False,
    sampled: bool = False,
    normalize_y: bool = False,
) -> Likelihood:
    """A name or an object as a Likelihood that can have so many targets or classes.

    Parameters
    ----------
    likelihood : str or Likelihood
    n_outputs : int
        Targets, or classes.
    classes : bool, default=False
        Whether y has classes.
    sampled : bool, default=False
        Whether the model samples basis functions, for which log p has to be concave; its targets
        share a covariance under any additive noise, those of other models under Gaussian noise.
    normalize_y : bool, default=False
        The model's parameter, which a likelihood with units of its own contradicts.

    Raises
    ------
    ValueError
        For an unknown name, or a likelihood that the model cannot take.
    """
    known = sorted(name for name, kind in NAMES.items() if kind.classes == classes)
    if isinstance(likelihood, str):
        if likelihood not in known:
            raise ValueError(
                f"Unknown likelihood {likelihood!r}: use one of {known}, or an object."
            )
        likelihood = NAMES[likelihood]()
    ours = clone(likelihood)
    if ours.classes != classes:
        task = "classes" if classes else "regression"
        raise ValueError(f"likelihood={ours!r} is not one of {task}: use {known}, or an object.")
    if sampled and not ours.log_concave:
        raise ValueError(
            f"likelihood={ours!r} is not log-concave, which models of sampled basis functions "
            "need; SVGPRegressor takes it. A likelihood of your own that is log-concave says so by "
            "log_concave = True."
        )
    if normalize_y and not ours.additive:
        raise ValueError(
            f"likelihood={ours!r} has y in its own units, which normalize_y=True would change: "
            "use normalize_y=False."
        )
    shares = classes or (ours.additive if sampled else ours.conjugate)
    if ours.n_latent(n_outputs) > 1 and not shares:
        raise ValueError(
            f"{type(ours).__name__} takes one target, y has {n_outputs}: wrap the model in "
            "sklearn.multioutput.MultiOutputRegressor."
        )
    return ours
