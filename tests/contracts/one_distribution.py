"""What a fitted model says of some rows, as one distribution: `disagreements` lists the rest.

The reference is the normal distribution, or the distribution whose density is integrated
numerically, with the mean and the standard deviations of ``predict`` and ``predict_std``. Draws are
compared by their standard errors, everything else to the precision of its arithmetic. For classes
the reference is ``predict_proba``. `answers` lists everything for comparisons to the bit, and
`conditional` has the normal distribution given further rows, by dense algebra.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnxruntime
import torch
from scipy import stats
from sklearn.base import is_classifier

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
    n_draws: int = 20_000,
    n_functions: int = 1600,
    noise_variance: Any = None,
    rtol: float = 1e-6,
    torch_rtol: float = 1e-5,
    path: Any = None,
) -> list[str]:
    """The names of the answers that do not describe the distribution of the others.

    Parameters
    ----------
    model : estimator
        Fitted.
    X : ndarray of shape (m, d)
    n_draws : int, default=20_000
        Number of joint samples.
    n_functions : int, default=1600
        Number of drawn functions.
    noise_variance : float or None, default=None
        Known noise variance of the rows.
    rtol, torch_rtol : float
        Tolerance of standard deviations, for predictions and for exports.
    path : path or None, default=None
        An ONNX file to write and to evaluate; None for no such file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_classifier(model):
            return disagreements_of_classes(model, X, path)
        known = {} if noise_variance is None else {"noise_variance": noise_variance}
        found = Answers(model, X, known, rtol, torch_rtol, n_draws, n_functions)
        for part in (found.deviations, found.covariance, found.quantiles, found.densities):
            part()
        for part in (found.samples, found.functions, found.module, found.botorch):
            part()
        if path is not None:
            found.onnx(path)
    return found.wrong


class Answers:
    """The reference, and one comparison for each kind of answer."""

    def __init__(self, model, X, known, rtol, torch_rtol, n_draws, n_functions):
        self.model, self.X, self.known = model, X, known
        self.n_draws, self.n_functions = n_draws, n_functions
        self.rtol, self.torch_rtol, self.wrong = rtol, torch_rtol, []
        self.mean, self.std = (wide(part) for part in model.predict(X, return_std=True, **known))
        self.latent = wide(model.predict_std(X, include_noise=False))
        likelihood = fitted_process(model).posterior.likelihood
        # Whether observations are normal, or normal functions with other noise.
        self.normal = likelihood.conjugate and not tails_of(model)
        self.additive = likelihood.additive and not tails_of(model)
        self.tails_below = any(tails_of(each) for each in with_those_below(model))
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
        # Equal rows have one function, and noise of their own.
        cov = self.model.predict(self.X[[0, 1, 0]], return_cov=True, **self.known)[1]
        one = cov.reshape(3, 3, -1)[0, 2] / self.std[0] ** 2
        if not self.tails_below:
            self.says("equal rows", one, (self.latent[0] / self.std[0]) ** 2, 10 * self.rtol)

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
        error = (2 / s) ** 0.5 if self.normal else square.std(2) / s**0.5
        if np.max(error) > 0.2:  # heavier tails have no variance of squares
            return
        self.says(f"{what}' variance", square.mean(2), 1, Z * error)
        if self.total is None:
            return
        apart = ~np.eye(len(z), dtype=bool)
        for k in range(self.mean.shape[1]):
            right = self.total[:, :, k] / np.outer(std[:, k], std[:, k])
            found = z[:, k] @ z[:, k].T / s
            error = np.sqrt((1 + right**2) / s)
            if not self.normal:
                error = np.maximum(error, np.sqrt(z[:, k] ** 2 @ (z[:, k] ** 2).T) / s)
            scale = Z * error
            self.says(f"{what}' covariance", found[apart], right[apart], scale[apart])

    def functions(self) -> None:
        """Drawn functions have the moments of the latent function.

        Draws of one call share their random frequencies. Given these, draws are normal around the
        same mean, with a covariance whose mean over the frequencies is right. So the error of means
        follows from the squares that were drawn, and that of covariances from the spread of
        several calls, which is not taken to be smaller than its average over the pairs of rows.
        """
        mean, square, count = [], [], self.n_functions // CALLS
        # A function that is known exactly has no other values than its mean.
        unit = np.where(self.latent > 1e-9 * self.std, self.latent, self.std)
        try:
            for seed in range(CALLS):
                f = sk.draw_functions(self.model, count, random_state=seed).values(self.X)
                z = (f if f.ndim == 3 else f[:, None]) - self.mean[..., None]
                z /= unit[..., None]
                mean.append(z.mean(2))
                square.append(np.einsum("its,jts->ijt", z, z) / count)
        except (NotExportable, TypeError):
            return
        n, found = count * CALLS, np.mean(square, 0)
        variance = np.einsum("iit->it", found)
        self.says("functions' mean", np.mean(mean, 0), 0, Z * (variance / n) ** 0.5 + 1e-9)
        error = np.std(square, 0, ddof=1) / CALLS**0.5
        right = np.square(self.latent / unit)
        least = np.sqrt(np.mean(np.square(error), (0, 1)))
        own = np.maximum(np.einsum("iit->it", error), (2 / n) ** 0.5)
        self.says("functions' variance", variance, right, Z * own)
        # With fitted tails, functions are those before the tails.
        if self.total is None or self.tails_below:
            return
        right = self.total / (unit[:, None] * unit)
        apart = ~np.eye(len(right), dtype=bool)
        scale = np.maximum(np.maximum(error, least), np.sqrt((1 + right**2) / n))
        # Functions of the nearest rows do not depend on other new rows, of which a covariance is a
        # chain.
        chain = 0.25 if isinstance(self.model, sk.NNGPRegressor) else 0.0
        self.says("functions' covariance", found[apart], right[apart], chain + Z * scale[apart])

    def module(self) -> None:
        """The torch module has these means and deviations, and so has one of means alone."""
        if self.known:
            return
        rows = torch.as_tensor(self.X, dtype=torch.float64)
        try:
            means = to_torch(self.model, return_std=False)
            found = [means(rows), means(rows[:1])]
            module = to_torch(self.model)
        except (NotExportable, TypeError):
            return
        pairs = module(rows), module(rows[:1])
        for mean in (*found, *(pair[0] for pair in pairs)):
            self._exported("module", mean)
        for pair in pairs:
            self._exported("module", *pair)

    def _exported(self, what: str, mean, std=None) -> None:
        """Compare means and deviations of the first rows as arrays or tensors."""
        mean = wide(np.asarray(mean))
        some = slice(len(mean))
        error = (mean - self.mean[some]) / self.std[some]
        self.says(f"{what}'s mean", error, 0, self.torch_rtol)
        if std is not None:
            self.says(f"{what}'s std", wide(np.asarray(std)) / self.std[some], 1, self.torch_rtol)

    def onnx(self, path) -> None:
        """So has the ONNX file."""
        try:
            sk.export_onnx(self.model, path)
        except NotExportable:
            return
        for rows in (self.X, self.X[:1]):
            self._exported("ONNX", *evaluated(path, rows))

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


def evaluated(path: Any, rows: np.ndarray) -> list[np.ndarray]:
    """What an ONNX file says of rows."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": rows})


def disagreements_of_classes(model: Any, X: np.ndarray, path: Any) -> list[str]:
    """As `disagreements`, for a classifier."""
    p, labels = model.predict_proba(X), model.classes_
    found = {
        "sum": (p.sum(1), 1),
        "log_proba": (np.exp(model.predict_log_proba(X)), p),
        "classes": (model.predict(X) == labels[p.argmax(1)], True),
    }
    for k, label in enumerate(labels):
        density = model.log_predictive_density(X, np.full(len(X), label))
        found[f"density of {label}"] = np.exp(density), p[:, k]
    module = to_torch(model)
    for m in (len(X), 1):
        rows = torch.as_tensor(X[:m])
        found[f"module of {m}"] = module(rows).numpy(), p[:m]
    if path is not None:
        sk.export_onnx(model, path)
        found["ONNX"] = evaluated(path, X)[0], p
    return [name for name, pair in found.items() if not np.allclose(*pair, rtol=1e-7, atol=1e-9)]


def answers(model: Any, X: np.ndarray) -> dict[str, np.ndarray]:
    """What a fitted model says of some rows, with draws of one seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_classifier(model):
            return {"p": model.predict_proba(X), "label": model.predict(X)}
        mean, std = model.predict(X, return_std=True)
        found = {"mean": mean, "std": std, "latent": model.predict_std(X, include_noise=False)}
        found["interval"] = model.predict_interval(X, 0.8)
        found["density"] = model.log_predictive_density(X, mean + 0.7 * std)
        ways = {
            "cov": lambda: model.predict(X, return_cov=True)[1],
            "samples": lambda: model.sample_y(X, 3, random_state=2),
            "functions": lambda: sk.draw_functions(model, 2, random_state=2).values(X),
            "module": lambda: torch.stack(to_torch(model)(torch.as_tensor(X))).numpy(),
        }
        for name, way in ways.items():
            try:
                found[name] = way()
            except (NotExportable, ValueError) as error:
                found[name] = np.array(str(error))
    return found


def conditional(model: Any, X: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, own: Any) -> Any:
    """Means (m, t) and standard deviations of X given further rows, by dense algebra.

    Parameters
    ----------
    model : regressor
        Fitted to earlier rows, with a joint normal posterior.
    X : ndarray of shape (m, d)
    X_new, y_new : ndarray of shape (k, d) and (k, t)
        The further rows.
    own : ndarray of shape (k, t)
        Noise variances of these rows beside the model's own noise.
    """
    rows, m = np.vstack([X, X_new]), len(X)
    mean, total = model.predict(rows, return_cov=True)
    mean, total = wide(mean), total if total.ndim == 3 else total[:, :, None]
    noise = np.einsum("iit->it", total) - wide(model.predict_std(rows, include_noise=False)) ** 2
    means, deviations = [], []
    for k in range(mean.shape[1]):
        f = total[:, :, k] - np.diag(noise[:, k])
        H = f[m:, m:] + np.diag(noise[m:, k] + own[:, k])
        gain = np.linalg.solve(H, f[m:, :m]).T
        means.append(mean[:m, k] + gain @ (y_new[:, k] - mean[m:, k]))
        variance = np.diag(f)[:m] - np.sum(gain * f[:m, m:], 1)
        deviations.append(np.sqrt(variance + noise[:m, k]))
    return np.column_stack(means), np.column_stack(deviations)


def trapezoid(p: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, float]:
    """The integral up to each point by the trapezoidal rule, and a bound of its error.

    Of a function that is monotone between two points, the integral lies between the rectangles.
    """
    step = np.diff(z)
    total = np.append(0, np.cumsum(step * (p[1:] + p[:-1]) / 2))
    return total, float(np.sum(step * np.abs(np.diff(p))) / 2)


def tails_of(model: Any) -> bool:
    """Whether a meta-estimator has fitted tails to the errors."""
    process = fitted_process(model)
    scaled = None if process is None else getattr(process.posterior, "scaled", None)
    tails = getattr(scaled, "tails", None)
    return tails is not None and tails.name != "normal"


def with_those_below(model: Any) -> list[Any]:
    """A model of this package and those that it is made of."""
    below = [getattr(model, "estimator_", None), *getattr(model, "estimators_", [])]
    return [model, *(each for part in below if part is not None for each in with_those_below(part))]


def wide(values: np.ndarray) -> np.ndarray:
    """(m, t)."""
    return values[:, None] if values.ndim == 1 else values


def narrow(values: np.ndarray) -> np.ndarray:
    """(m,) for one target."""
    return values[:, 0] if values.shape[1] == 1 else values
