"""Steps for kernel functions at all training rows: natural gradients are sparse there."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.training import Stepper
from ._basis import Functions, KernelFunctions
from ._bounds import BasisDraw, Projection, optimal_diagonal
from ._fit import Fit, Trained
from ._optimizers import SparseOptimizer
from ._site import Site
from ._start import support_weights
from ._stepper import StepSizes
from ._support import Flattening, SupportRows
from ._trained import SampledModel

# Kernel functions evaluated at a time where a step takes all.
_FUNCTIONS = 8192


class DualStepper(Stepper):
    """Trains the mean of q(w) for phi_i = k(., x_i) at all n rows, with S = K.

    The gradient of minus the ELBO is K (r + mu), with r the derivative of minus the log likelihood
    in f = K mu, and the natural one is r + mu: it has an entry a row, and a step changes those of
    its rows only. f at these rows is estimated from other, independently drawn functions and what
    is known at the support rows. O(b u d + b s^2) a step for u drawn functions. Weights are
    residuals over the noise variance, and sums of few of them are noisy: draws of all functions,
    O(b n d), often need so many fewer steps that they are the cheaper ones.

    Parameters
    ----------
    source : RowSource
    basis : KernelFunctions
        At the rows of `source`, in their order.
    site : Site
    support : SupportRows
    support_index : Tensor of shape (s,)
        Their numbers.
    flattening : Flattening
        With K as its gram.
    optimizer : SparseOptimizer
    coef : Tensor of shape (n, t)
        Starting mu; changed in place.
    shared : Tensor of shape (s, t)
        Starting values of a part of mu that is known in full, at the support rows.
    sizes : StepSizes
        Its blocks are functions.
    rng : numpy.random.Generator
    """

    objective_name = "expected log likelihood a row and target"

    def __init__(
        self,
        source: RowSource,
        basis: KernelFunctions,
        site: Site,
        support: SupportRows,
        support_index: Int64[Tensor, " s"],
        flattening: Flattening,
        optimizer: SparseOptimizer,
        coef: Float[Tensor, "n t"],
        shared: Float64[Tensor, "s t"],
        sizes: StepSizes,
        rng: np.random.Generator,
    ):
        self.source, self.basis, self.site, self.support = source, basis, site, support
        self.support_index, self.flattening, self.optimizer = support_index, flattening, optimizer
        self.coef, self.shared, self.sizes, self.rng = coef, shared, sizes, rng
        self.n = len(source)
        self._rows = support.all_rows
        # k(support rows, .) coef, without the shared part.
        self.a = shared.new_zeros(len(self._rows), shared.shape[1])
        if bool(coef.any()):
            for part in basis.parts(4096):
                cross = part.evaluate(support.theta, self._rows)
                self.a += (cross @ coef[part.index]).double()
        s = len(support)
        K, prior = flattening.gram[:s], flattening.gram[:s].diagonal()
        squares = self.n / len(support) * K.square().sum(0)
        c = optimal_diagonal(squares, site.curvature, prior)
        share = self.n / len(support)
        self._std = (share * (flattening.gram[s:].square() @ c.square())).sqrt()[:, None]

    def step(self) -> None:
        with torch.no_grad():
            size = min(self.sizes.rows, self.n)
            rows = self.rng.choice(self.n, size, replace=False, shuffle=False)
            rows.sort()
            X, Y = self.source.rows(rows)
            index = torch.as_tensor(rows)
            everywhere = self.support.kernel.cross(self.support.theta, X, self._rows)
            cross = everywhere[:, : len(self.support)]
            f = self._function(X, cross)
            variance = self._std.mean().square().to(f).expand(len(f), 1)
            site = self.site.at(self.source.known(rows))
            slope = site.terms(Y, f, variance).d_mean
            gradient = self.n / size * (self.coef[index] - slope)
            gradient = gradient - self._shared_part(index, size)
            scale = 1 / self.flattening.level
            change = self.optimizer.change(index, scale * gradient[None], self.n)[0]
            self.coef[index] += change
            self.a += (everywhere.T @ change).double()
            self.shared -= self.flattening.Q @ (cross.T @ change).double()
            self.optimizer.advance()

    def _function(self, X: Float[Tensor, "b d"], cross: Float[Tensor, "b s"]) -> Tensor:
        known = cross @ self.shared.to(X)
        if self.sizes.blocks >= self.n:
            for part in self.basis.parts(_FUNCTIONS):
                known = known + part.evaluate(self.support.theta, X) @ self.coef[part.index]
            return known
        part, scale = self.basis.draw(self.sizes.blocks, self.rng)
        draw = BasisDraw(
            part.evaluate(self.support.theta, X),
            self.coef[part.index],
            scale,
            part.evaluate(self.support.theta, self.support.X),
        )
        a = self.a[: len(self.support)].to(X)
        control = Projection(self.support.regression(cross), a)
        return control.function(draw) + known

    def _shared_part(self, index: Tensor, size: int) -> Tensor:
        """The share of mu that the drawn support rows hold; negative, since it is subtracted."""
        out = self.coef.new_zeros(len(index), self.coef.shape[1])
        at = torch.searchsorted(self.support_index, index).clamp_max(len(self.support_index) - 1)
        drawn = self.support_index[at] == index
        out[drawn] = -(self.n / size) * self.shared[at[drawn]].to(out)
        return out

    def score(self) -> float:
        """Minus the expected log likelihood of some fixed rows; log|K| is out of reach."""
        s = len(self.support)
        mean = self.a[s:] + self.flattening.gram[s:] @ self.shared
        if not bool(torch.isfinite(mean).all()):
            return float("nan")
        site = self.site.at(self.support.known_check)
        terms = site.terms(self.support.Y_check.double(), mean, self._std.square())
        return -float(terms.value.mean()) / mean.shape[1]

    def theta(self) -> np.ndarray:
        return self.support.theta.cpu().numpy().copy()

    def snapshot(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.coef.clone(), self.shared.clone(), self.a.clone()

    def restore(self, snapshot: tuple[Tensor, Tensor, Tensor]) -> None:
        self.coef.copy_(snapshot[0])
        self.shared, self.a = snapshot[1].clone(), snapshot[2].clone()

    def folded(self) -> Float[Tensor, "n t"]:
        """mu with its shared part, a copy."""
        coef = self.coef.clone()
        coef[self.support_index] += self.shared.to(coef)
        return coef


def train_dual(fit: Fit, functions: Functions, site: Site) -> Trained:
    """Steps for kernel functions at all rows to the end."""
    run, stepper = fit.run, None
    rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
    basis = functions.basis(fit.d, fit.plan.dtype, run.device)
    with run.stage("support", optional=True):
        stepper = make_dual_stepper(fit, basis, site, rng)
    if stepper is None:
        return Trained(None, run.monitor.stopped, 0)

    @torch.no_grad()
    def state(rng: np.random.Generator) -> SampledModel:
        # c_rr in closed form; O(n) for so many rows.
        squares = fit.squares(basis, stepper.support, rng, watch=False)
        prior = basis.kernel.diag(stepper.support.theta, basis.points)
        diagonal = optimal_diagonal(squares, site.curvature, prior)
        return dual_state(fit, stepper, functions, diagonal)

    result = fit.drive(stepper, lambda model, score: model._keep(state(np.random.default_rng(0))))
    model = run.finish("weights", lambda: state(rng))
    return Trained(model, result.stop_reason, result.n_steps)


def make_dual_stepper(
    fit: Fit, basis: KernelFunctions, site: Site, rng: np.random.Generator
) -> DualStepper:
    """A stepper at its first weights: those of the support rows alone, or the past's. O(s^3)."""
    plan, past = fit.plan, fit.past
    with torch.no_grad():
        support = fit.support(basis.kernel)
        X, theta = support.X, support.theta
        K = basis.kernel.cross(theta, support.all_rows.double(), X.double())
        fit.check_range(K)
        fit.run.monitor.check_time()
        batch, _ = fit.source.rows(np.sort(rng.choice(fit.n, plan.rows, replace=False)))
        flattening = Flattening.build(support, K, batch, site.curvature, fit.n)
        alpha = support_weights(site.at(support.known), K[: len(X)], support.Y.double())
        coef = torch.zeros(fit.n, fit.t).to(X)
        if past is not None:
            coef = torch.as_tensor(past.mean[0]).to(X)
            alpha = torch.zeros_like(alpha)
        return DualStepper(
            fit.source,
            basis,
            site,
            support,
            torch.as_tensor(fit.split()[0]).to(X.device),
            flattening,
            fit.optimizer(),
            coef,
            alpha,
            StepSizes(plan.rows, plan.components),
            rng,
        )


def dual_state(
    fit: Fit, stepper: DualStepper, functions: Functions, diagonal: Tensor
) -> SampledModel:
    """What a stepper has reached, as arrays of their own."""
    site, support = stepper.site, stepper.support
    return SampledModel(
        functions,
        mean=stepper.folded().cpu().numpy()[None],
        dense=np.zeros((1, fit.n, 0)),
        diagonal=diagonal.cpu().numpy(),
        support_X=support.X.cpu().numpy(),
        support_Y=support.Y.cpu().numpy(),
        noise=site.noise,
        curvature=site.curvature,
        n_rows=fit.n_total,
        dtype=str(fit.plan.dtype).removeprefix("torch."),
        lower_bound=float("nan"),
        by_support=fit.settings.covariance == "support",
    )
