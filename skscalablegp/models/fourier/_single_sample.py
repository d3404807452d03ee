"""The log marginal likelihood from random features, made unbiased by a random correction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from ...features import PriorFeatures, frequencies_per_product, sample_prior_features
from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import GPProblem, exact_marginal_likelihood
from ...linalg.truncation import Truncation, TruncationDistribution, single_sample
from ._collapsed import collapsed_marginal_likelihood


@dataclass(frozen=True)
class FeatureLevels:
    """The series log|K_base| + sum_j (log|K_j| - log|K_{j-1}|), whose last matrix is exact.

    Level j has ``j * step`` random Fourier functions, which are the first ones of a single draw.

    Attributes
    ----------
    step : int
        Functions from one level to the next.
    truncation : Truncation or None
        Distribution of the level whose increment is computed. None if there are so few rows that
        the exact matrix costs no more than the first level.
    """

    step: int
    truncation: Truncation | None

    @classmethod
    def of(
        cls, n: int, min_components: int, step: int, truncation: TruncationDistribution
    ) -> FeatureLevels:
        """The levels for n rows; with more than n features an increment would cost more than H."""
        base, last = -(-min_components // step), -(-n // step)
        if base >= last:
            return cls(step, None)
        drawn = truncation.on(last, start=base + 1)
        if drawn.low == drawn.high < last:
            raise ValueError(
                f"truncation={truncation!r} always computes the same increment, which is biased: "
                "use ReciprocalTruncation(), or RFFRegressor for a fixed number of features."
            )
        return cls(step, drawn)

    def n_pairs(self, level: int, kernel: TorchKernel) -> int:
        """Sine and cosine pairs of a level, for each product of the kernel."""
        return frequencies_per_product(kernel, level * self.step)


def level_terms(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    levels: FeatureLevels,
    features: PriorFeatures | None,
    level: int,
) -> Float64[Tensor, " p2"]:
    """The quadratic term, the log determinant and the gradient at one level, as one vector."""
    if levels.truncation is None or level == levels.truncation.high:
        problem = problem.whole()
        result = exact_marginal_likelihood(problem, theta)
        n, t = problem.Y.shape
        quadratic = float((problem.Y.double() * result.weights.double()).sum())
        log_det = float(2 * result.factor.diagonal().double().log().sum())
    else:
        nested = features.head(levels.n_pairs(level, problem.kernel))
        result = collapsed_marginal_likelihood(problem, theta, nested)
        quadratic, log_det = result.quadratic, result.log_det
    return torch.cat([torch.tensor([quadratic, log_det]).double(), result.grad.cpu()])


def single_sample_terms(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    levels: FeatureLevels,
    generator: Generator,
) -> Float64[Tensor, " p2"]:
    """Unbiased quadratic term, log determinant and gradient, as one vector.

    The time budget is looked at before every evaluation, which may take long.

    Notes
    -----
    Potapczynski et al. (2021), section 4.2. There are three evaluations: at the base, at the drawn
    level J and at the one below. They cost O(n (J step)^2), or O(n^3) if J is the last level.
    """
    truncation = levels.truncation
    if truncation is None:
        look_up()
        return level_terms(problem, theta, levels, None, 0)
    draw = int(truncation.sample(1, generator))
    most = levels.n_pairs(max(draw, truncation.low - 1), problem.kernel)
    d = problem.X.shape[1]
    features = sample_prior_features(
        problem.kernel, d, most, generator, torch.float64, problem.X.device
    )
    known: dict[int, Tensor] = {}

    def at(level: int) -> Tensor:
        if level not in known:
            look_up()
            known[level] = level_terms(problem, theta, levels, features, level)
        return known[level]

    return single_sample(at(truncation.low - 1), lambda j: at(j) - at(j - 1), truncation, draw)
