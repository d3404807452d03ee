"""What a fitted regressor says of some rows, as one distribution: `disagreements` lists the rest.

The reference is the normal distribution, or the distribution whose density is integrated
numerically, with the mean and the standard deviations of ``predict`` and ``predict_std``. Draws are
compared by their standard errors, everything else to the precision of its arithmetic.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy import stats

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.export import NotExportable, to_torch

# Standard errors by which draws may differ: of 20 rows, some 50 numbers and 60 models, the largest
# normal number is above 4.8 in one of ten runs; the draws follow a seed.
Z = 5.0
# Calls that draw functions, each with random frequencies of its own.
CALLS = 16
# Quantiles at which a density is integrated beside a grid that reaches far, so that peaks of any
# width are resolved.
PLACES = (np.arange(400) + 0.5) / 400
Q = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])


def disagreements(
    model: Any,
    X: np.ndarray,
    *,
    n_draws: int = 4000,
    noise_variance: Any = None,
    rtol: float = 1e-6,
    torch_rtol: float = 1e-5,
) -> list[str]:
    """The names of the answers that do not describe the distribution of the others.

    Parameters
    ----------
    model : regressor
        Fitted.
    X : ndarray of shape (m, d)
    n_draws : int, default=4000
        Number of joint samples and of drawn functions.
    noise_variance : float or None, default=None
        Known noise variance of the rows.
    rtol, torch_rtol : float
        Tolerance of standard deviations, for predictions and for exports.
    """
    known = {} if noise_variance is None else {"noise_variance": noise_variance}
    found = Answers(model, X, known, rtol, torch_rtol, n_draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (found.deviations, found.covariance, found.quantiles, found.densities):
            part()
        for part in (found.samples, found.functions, found.module, found.botorch):
            part()
    return found.wrong


class Answers:
    """The reference, and one comparison for each kind of answer."""

    def __init__(self, model, X, known, rtol, torch_rtol, n_draws):
        self.model, self.X, self.known, self.n_draws = model, X, known, n_draws
        self.rtol, self.torch_rtol, self.wrong = rtol, torch_rtol, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.mean, self.std = (
                wide(part) for part in model.predict(X, return_std=True, **known)
            )
            self.latent = wide(model.predict_std(X, include_noise=False))
        likelihood = fitted_process(model).posterior.likelihood
        # Whether observations are normal, or normal functions with other noise.
        self.normal = likelihood.conjugate and not tails_of(model)
        self.additive = likelihood.additive and not tails_of(model)
        self.total = None

    def says(self, what: str, found, right, tol) -> None:
        """Note a difference beyond a tolerance, with the largest one."""
        found, right = np.broadcast_arrays(found, right)
        worst = np.max(np.abs(found - right) / tol) if found.size else 0.0
        if not worst <= 1:
            self.wrong.append(f"{what}: {worst:.3g} of its tolerance")

    def deviations(self) -> None:
        """`predict_std` with noise is that of `predict`; means do not depend on the call."""
        std = wide(self.model.predict_std(self.X, **self.known))
        self.says("predict_std", std / self.std, 1, self.rtol)
        mean = wide(self.model.predict(self.X))
        self.says("mean", (mean - self.mean) / self.std, 0, self.rtol)
        self.says("latent std", np.maximum(self.latent / self.std, 1), 1, 1e-9)

    def covariance(self) -> None:
        """The diagonal of `return_cov` has the same variances."""
        try:
            mean, total = self.model.predict(self.X, return_cov=True, **self.known)
        except ValueError as error:
            if "joint" not in str(error):
                raise
            return
        self.total = total if total.ndim == 3 else total[:, :, None]
        self.says("return_cov's mean", (wide(mean) - self.mean) / self.std, 0, self.rtol)
        diagonal = np.einsum("iit->it", self.total)
        self.says("return_cov", np.sqrt(diagonal) / self.std, 1, self.rtol)

    def quantiles(self) -> None:
        """Normal quantiles; for other distributions `densities` has them."""
        for noise, std in ((True, self.std), (False, self.latent)):
            known = self.known if noise else {}
            ends = self.model.predict_interval(self.X, 0.9, include_noise=noise, **known)
            q = self.model.predict_quantiles(self.X, [0.05, 0.95], include_noise=noise, **known)
            self.says("intervals", ends, q, 1e-9 * (1 + np.abs(q)))
            if not (self.normal or (self.additive and not noise)):
                continue
            q = self.model.predict_quantiles(self.X, Q, include_noise=noise, **known)
            right = self.mean[..., None] + std[..., None] * stats.norm.ppf(Q)
            q = q.reshape(right.shape)
            name = "quantiles" if noise else "latent quantiles"
            self.says(name, q, right, self.rtol * std[..., None] + 1e-12)

    def densities(self) -> None:
        """The density has integral one, these moments and these quantiles."""
        if self.normal:
            for z in (-2.0, 0.3):
                y = self.mean + z * self.std
                found = wide(self.model.log_predictive_density(self.X, narrow(y), **self.known))
                right = stats.norm.logpdf(y, self.mean, self.std)
                self.says("density", found, right, 10 * self.rtol)
            return
        if not (self.additive or tails_of(self.model)):
            return
        for i in range(0, len(self.X), 5):
            row, far = self.X[i : i + 1], np.sinh(np.linspace(-16, 16, 4573))
            at = self.model.predict_quantiles(row, np.concatenate([Q, PLACES]), **self.known)
            at = at.reshape(-1, len(Q) + len(PLACES)) - self.mean[i][:, None]
            for k, places in enumerate(at / self.std[i][:, None]):
                z = np.union1d(far, places)
                y = self.mean[i] + self.std[i] * z[:, None]
                known = {name: np.full(y.shape, value) for name, value in self.known.items()}
                log_p = self.model.log_predictive_density(
                    np.repeat(row, len(z), 0), narrow(y), **known
                )
                p = np.exp(wide(log_p)[:, k]) * self.std[i, k]
                for name, power, right in (("integral", 0, 1), ("mean", 1, 0), ("variance", 2, 1)):
                    total, error = trapezoid(p * z**power, z)
                    self.says(f"density's {name}", total[-1], right, error + 1e-6)
                below, error = trapezoid(p, z)
                below = np.interp(places[: len(Q)], z, below)
                self.says("quantiles and density", below, Q, error + 1e-6)

    def samples(self) -> None:
        """Moments, correlations and quantiles of joint samples of `sample_y`."""
        s = self.n_draws
        try:
            y = self.model.sample_y(self.X, s, random_state=1, **self.known)
        except ValueError as error:
            if "joint" not in str(error):
                raise
            return
        y = y if y.ndim == 3 else y[:, None]
        self._moments("samples", y, self.std)
        share = self.model.predict_quantiles(self.X, Q, **self.known)
        share = share.reshape(*self.mean.shape, len(Q))
        below = (y[:, :, None] <= share[..., None]).mean(-1)
        if self.additive or self.normal or tails_of(self.model):
            tol = Z * np.sqrt(Q * (1 - Q) / s)
            self.says("samples and quantiles", below, Q, tol)

    def _moments(self, what: str, draws, std) -> None:
        """Compare means, variances and (for all pairs of rows) covariances of draws (m, t, s)."""
        s = draws.shape[2]
        z = (draws - self.mean[..., None]) / std[..., None]
        self.says(f"{what}' mean", z.mean(2), 0, Z / s**0.5)
        square = z**2
        if self.normal:
            self.says(f"{what}' variance", square.mean(2), 1, Z * (2 / s) ** 0.5)
        else:
            error = square.std(2) / s**0.5
            if np.max(error) < 0.2:  # heavier tails have no variance of squares
                self.says(f"{what}' variance", square.mean(2), 1, Z * error)
        if self.total is None:
            return
        own = np.square(self.std) - np.square(std)
        for k in range(self.mean.shape[1]):
            right = self.total[:, :, k] - np.diag(own[:, k])
            right = right / np.outer(std[:, k], std[:, k])
            found = z[:, k] @ z[:, k].T / s
            apart = ~np.eye(len(right), dtype=bool)
            scale = Z * np.sqrt((1 + right**2) / s)
            self.says(f"{what}' covariance", found[apart], right[apart], scale[apart])

    def functions(self) -> None:
        """Drawn functions have the moments of the latent function.

        Draws of one call share their random frequencies. Given these, draws are normal around the
        same mean, with a variance whose mean over the frequencies is right. So the error of means
        follows from the squares that were drawn, and that of the variance from the spread of
        several calls.
        """
        mean, square, count = [], [], self.n_draws // CALLS
        try:
            for seed in range(CALLS):
                f = sk.draw_functions(self.model, count, random_state=seed).values(self.X)
                z = (f if f.ndim == 3 else f[:, None]) - self.mean[..., None]
                z /= self.latent[..., None]
                mean.append(z.mean(2))
                square.append((z**2).mean(2))
        except (NotExportable, TypeError):
            return
        n = count * CALLS
        self.says("functions' mean", np.mean(mean, 0), 0, Z * (np.mean(square, 0) / n) ** 0.5)
        error = np.std(square, 0, ddof=1) / CALLS**0.5
        tol = Z * np.maximum(error, (2 / n) ** 0.5)
        self.says("functions' variance", np.mean(square, 0), 1, tol)

    def module(self) -> None:
        """The torch module has these means and deviations."""
        try:
            module = to_torch(self.model)
        except (NotExportable, TypeError):
            return
        with torch.no_grad():
            mean, std = module(torch.as_tensor(self.X, dtype=torch.float64))[:2]
        if self.known:
            return
        self.says("module's mean", (wide(mean.numpy()) - self.mean) / self.std, 0, self.torch_rtol)
        self.says("module's std", wide(std.numpy()) / self.std, 1, self.torch_rtol)

    def botorch(self) -> None:
        """The posterior of BoTorch has the same joint covariance."""
        if self.known or self.total is None:
            return
        try:
            model = sk.as_botorch(self.model)
            posterior = model.posterior(torch.as_tensor(self.X), observation_noise=True)
        except (NotExportable, TypeError):
            return
        mean = posterior.mean.detach().numpy()
        variance = posterior.variance.detach().numpy()
        self.says("BoTorch's mean", (mean - self.mean) / self.std, 0, self.torch_rtol)
        self.says("BoTorch's std", np.sqrt(variance) / self.std, 1, self.torch_rtol)
        if self.mean.shape[1] == 1:
            joint = posterior.distribution.covariance_matrix.detach().numpy()
            scale = np.outer(self.std, self.std)
            tol = 10 * self.torch_rtol
            self.says("BoTorch's covariance", joint / scale, self.total[:, :, 0] / scale, tol)


def trapezoid(p: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, float]:
    """The integral up to each point by the trapezoidal rule, and a bound of its error.

    Of a function that is monotone between two points, the integral lies between the rectangles.
    """
    step = np.diff(z)
    total = np.append(0, np.cumsum(step * (p[1:] + p[:-1]) / 2))
    return total, float(np.sum(step * np.abs(np.diff(p))) / 2)


def tails_of(model: Any) -> bool:
    """Whether a meta-estimator has fitted tails to the errors."""
    scaled = getattr(fitted_process(model).posterior, "_scaled", None)
    tails = getattr(scaled, "tails", None)
    return tails is not None and tails.name != "normal"


def wide(values: np.ndarray) -> np.ndarray:
    """(m, t)."""
    return values[:, None] if values.ndim == 1 else values


def narrow(values: np.ndarray) -> np.ndarray:
    """(m,) for one target."""
    return values[:, 0] if values.shape[1] == 1 else values
