"""The log marginal likelihood by randomly truncated conjugate gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from ..operators import LinearOperator
from ..preconditioners import IdentityPreconditioner, Preconditioner
from ..solvers import tridiagonal_from_cg
from ..truncation import RouletteSum, Truncation, cg_stream, roulette_weights


@dataclass(frozen=True)
class TruncatedLikelihood:
    """Unbiased estimates of the likelihood's two terms.

    Attributes
    ----------
    quadratic : Tensor of shape (t,)
        Of y' H^-1 y, one for each target, float64.
    log_det : Tensor of shape (s,)
        Of log|H|, one for each probe, float64.
    value : float
        Of the log marginal likelihood, summed over targets.
    """

    quadratic: Float64[Tensor, " t"]
    log_det: Float64[Tensor, " s"]
    value: float


def truncated_likelihood(
    operator: LinearOperator,
    Y: Float[Tensor, "n t"],
    truncation: Truncation,
    generator: Generator,
    *,
    n_probes: int = 10,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> TruncatedLikelihood:
    """Russian roulette for y' H^-1 y and log|H| from one CG run.

    The terms of the first are gamma_j d_j' y. Those of the second are the differences of the
    Lanczos quadratures n e1' log(T_j) e1, whose T_j are made of CG's coefficients; for probes from
    N(0, P) they sum to log|P^-1 H| on average. The targets share one truncation point, the probes
    another.

    Parameters
    ----------
    operator : LinearOperator
        H.
    Y : Tensor of shape (n, t)
        Targets.
    truncation : Truncation
        Bound to n; a fixed one gives CG's biased terms: too small a quadratic term, too large a
        determinant.
    generator : torch.Generator
        Probes and truncation points.
    n_probes : int, default=10
        s; without a preconditioner random signs, else draws from N(0, P).
    preconditioner : Preconditioner, optional
        P.
    reorthogonalize : bool, default=False
        See `skscalablegp.truncation.cg_stream`.

    Notes
    -----
    Potapczynski et al. (2021), equations 12 and 13: max(J) epochs, and eigenproblems of size
    min(J) to J.
    """
    n, t = Y.shape
    P = preconditioner or IdentityPreconditioner(n, operator.dtype, operator.device)
    if preconditioner is None:
        Z = 2.0 * torch.randint(0, 2, (n, n_probes), generator=generator) - 1
    else:
        Z = P.sample(n_probes, generator)
    draws = truncation.sample(2, generator)
    quadratic, log_det = likelihood_terms(
        operator,
        Y,
        Z.to(Y),
        roulette_weights(truncation, draws[:1]),
        roulette_weights(truncation, draws[1:]),
        preconditioner=P,
        reorthogonalize=reorthogonalize,
    )
    fit = float(quadratic.sum())
    value = -0.5 * (fit + t * float(log_det.mean()) + n * t * math.log(2 * math.pi))
    return TruncatedLikelihood(quadratic, log_det, value)


def likelihood_terms(
    operator: LinearOperator,
    Y: Float[Tensor, "n t"],
    Z: Float[Tensor, "n s"],
    target_weights: Float64[Tensor, "k terms"],
    probe_weights: Float64[Tensor, "l more"],
    *,
    preconditioner: Preconditioner,
    reorthogonalize: bool = False,
) -> tuple[Float64[Tensor, " k_or_t"], Float64[Tensor, " l_or_s"]]:
    """The two weighted sums for given probes and weights (see `RouletteSum` for their shapes)."""
    t = Y.shape[1]
    quadratic = RouletteSum(target_weights)
    n_steps = max(target_weights.shape[1], probe_weights.shape[1])
    stream = cg_stream(
        operator,
        torch.cat([Y, Z], 1),
        n_steps,
        preconditioner=preconditioner,
        reorthogonalize=reorthogonalize,
    )
    gammas, betas = [], []
    for state in stream:
        term = (state.direction[:, :t] * Y).sum(0, dtype=torch.float64) * state.gamma[:t]
        quadratic.add(term)
        if len(gammas) < probe_weights.shape[1]:
            gammas.append(state.gamma[t:])
            betas.append(state.betas[-1][t:])
    first = quadratic.value if quadratic.value is not None else Y.new_zeros(t).double()
    log_det = _roulette_log(gammas, betas, probe_weights.to(Y.device), len(Y))
    return first, log_det + preconditioner.log_det()


def _roulette_log(
    gammas: list[Float64[Tensor, " s"]],
    betas: list[Float64[Tensor, " s"]],
    weights: Float64[Tensor, "l terms"],
    n: int,
) -> Float64[Tensor, " l_or_s"]:
    """Weighted sum of the differences of n e1' log(T_j) e1."""
    if not gammas:
        return torch.zeros(max(len(weights), 1), dtype=torch.float64)
    T = tridiagonal_from_cg(gammas, betas).matrix()
    total, before = RouletteSum(weights), torch.zeros(len(T), dtype=torch.float64).to(T)
    # Where two neighbouring weights are equal for all, the quadrature between them cancels.
    same = (weights[:, 1:] == weights[:, :-1]).all(0).tolist() + [False]
    for j in range(1, len(gammas) + 1):
        if same[j - 1] and j < len(gammas):
            total.add(torch.zeros_like(before))
            continue
        values, vectors = torch.linalg.eigh(T[:, :j, :j])
        logs = values.clamp_min(torch.finfo(values.dtype).tiny).log()
        quadrature = n * (vectors[:, 0].square() * logs).sum(1)
        total.add(quadrature - before)
        before = quadrature
    return total.value
