"""The fit that the variational regressor and classifier share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ..._validation import check_points, resolve_dtype, validated
from ...core import (
    KNOWN_NOISE,
    SMALL_TABLE,
    FitRun,
    StageSettings,
    check_categories,
    chosen_start,
    compared_start,
    exact_start,
    left_out,
    random_rows,
    rows_for,
    rows_to_check,
    start_rows,
    target_unit,
    warn_if_rough,
    with_default_noise,
)
from ...core.data import RowSource, Scaling, standardised_limits
from ...core.likelihoods import Gaussian, Likelihood
from ...core.training import TrainingResult, TrainingStep
from ...features import (
    LimitedNetwork,
    Network,
    make_network,
    network_from_numpy,
    network_to_numpy,
)
from ...kernels import TorchKernel, compile_kernel, default_kernel
from ...linalg.gradients import GPProblem
from ._bound import WhitenedBelief
from ._posterior import InducingPosterior
from ._selection import INDUCING_METHODS
from ._stepper import SparseFit, SparseModel, SparseRows, SparseSettings
from ._training import (
    START_ROWS,
    START_STEPS,
    SparsePlan,
    absorb,
    begin,
    finished,
    train_batches,
)

# Rows up to which products are in float64.
_FLOAT64_ROWS = 3000
_EPOCHS = 8
# Fewest steps for tables of up to 200 rows, fewest steps for larger ones, and most steps.
_STEPS = (30, 80, 400)
# Weight of a batch in a natural step, and of a step on all rows if one step is not enough.
_NATURAL_RATE = 0.1
_WHOLE_RATE = 0.3
# Most passes over rows that are added later.
_PASSES = 30
# Fewest rows for which a start on some rows is worthwhile.
_FEWEST_START = 100
# A further regression is the start if it explains so much more of the variance of rows left out.
# The likelihood would often choose it for labels, which are not normal, and mislead: of nine splits
# of three small tables of classes, with gains of at most .05, it made the log loss worse on seven.
_CLEARLY_BETTER = 0.1

# A kernel, rows, targets, and a function from the kernel's theta to the model's.
Start = tuple[TorchKernel, torch.Tensor, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]


class _Regressed(NamedTuple):
    """The model's theta after a regression, what it explains, and a sentence on where it began.

    `explained` is a share of the variance of rows left out.
    """

    theta: torch.Tensor
    result: TrainingResult
    explained: float = 0.0
    origin: str = ""


def planned_points(estimator: Any, n: int, d: int, most: int, run: FitRun) -> int:
    """The number of inducing points; checks `n_inducing` and `inducing`.

    Raises
    ------
    ValueError
        For an unknown way to choose points, or points of the wrong shape.
    """
    inducing = estimator.inducing
    if not isinstance(inducing, str):
        run.ignores("n_inducing", "the points are given")
        return len(check_points("inducing", inducing, d))
    if inducing not in INDUCING_METHODS:
        raise ValueError(
            f"Unknown inducing={inducing!r}: use one of {INDUCING_METHODS} or an array of "
            "shape (m, d)."
        )
    m = min(n, most if estimator.n_inducing == "auto" else int(estimator.n_inducing))
    if m == n:
        run.ignores("inducing", "all rows are inducing points")
    return run.chose("n_inducing", m, "all rows" if m == n else "accurate enough for most tables")


class SparseMixin:
    """Settings, training and fitted attributes; a subclass reads the table."""

    _objective = "lower_bound_"

    # ------------------------------------------------------------------ settings

    def _most_points(self, n_outputs: int) -> int:
        """The value of n_inducing="auto" on large tables."""
        return 512

    def _plan(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        noise: np.ndarray,
        scaling: Scaling,
        likelihood: Likelihood,
        n_outputs: int,
        run: FitRun,
    ) -> SparsePlan:
        """Resolve and check all settings, before any work."""
        generator, (n, d) = run.generator, X.shape
        network = self._new_network(X, scaling, run)
        targets = (Y - scaling.y_mean) / scaling.y_scale
        if not likelihood.additive:
            run.ignores("alpha", f"{likelihood} has no noise beside it")
        targets = likelihood.start_targets(torch.as_tensor(targets)).numpy()
        unit = target_unit(targets)
        kernel, inputs = self._kernel_and_scaling(X, scaling, network, unit, likelihood)
        width = d if network is None else network.n_features
        noisy = likelihood.conjugate and float(np.max(noise, initial=0.0)) < KNOWN_NOISE
        priors = self._priors(kernel, (n, width), noisy and network is None, run)
        compiled = compile_kernel(kernel, width, priors=priors)
        model = SparseModel(compiled, likelihood, n_outputs, network)
        settings, planned = self._sparse_settings(n, model, inputs, run)
        whole = self._may_be_whole(model) and n <= min(SMALL_TABLE, settings.n_inducing)
        self._report_unused(model, settings, n, whole, run)
        dtype = resolve_dtype(self.dtype, n, threshold=_FLOAT64_ROWS)
        run.chose(
            "dtype", str(dtype).removeprefix("torch."), f"float64 up to {_FLOAT64_ROWS:,} rows"
        )
        m, s, b = settings.n_inducing, model.n_factors, settings.batch_size
        run.check_memory(
            8 * m * m * (6 + 6 * s) + 8 * m * b * (4 + 2 * s),
            f"{m} inducing points with {s} covariances of {m} x {m}",
            f"use fewer, for example n_inducing={max(1, m // 4)}",
        )
        source = RowSource(X, Y, inputs, dtype, run.device).resident()
        rows = SparseRows(source, torch.as_tensor(noise).to(run.device, dtype))
        self._check_rows(model, rows, X)
        weights = [] if network is None else network.initial(generator, dtype)
        weights = [w.to(run.device) for w in weights]
        run.reports(
            summary=f"{m} inducing points, batches of {b}, in "
            f"{str(dtype).removeprefix('torch.')} on {run.device}"
        )
        return SparsePlan(model, rows, settings, inputs, weights, unit, whole, planned)

    def _may_be_whole(self, model: SparseModel) -> bool:
        """Whether the bound could be the exact likelihood, with all rows as inducing points."""
        return (
            self.optimizer is not None
            and model.kernel.n_params > 0
            and isinstance(self.inducing, str)
            and model.likelihood.conjugate
            and model.network is None
            and self.variational_optimizer == "natural"
        )

    def _sparse_settings(
        self, n: int, model: SparseModel, inputs: Scaling, run: FitRun
    ) -> tuple[SparseSettings, bool]:
        """The settings, and whether there are at least as many steps as "auto" would take."""
        if self.optimizer not in ("adam", None):
            raise ValueError(
                f"Unknown optimizer {self.optimizer!r}: use 'adam', or None to keep the kernel and "
                "the inducing points. variational_optimizer is a parameter of its own."
            )
        if self.variational_optimizer not in ("natural", "adam"):
            raise ValueError(
                f"Unknown variational_optimizer {self.variational_optimizer!r}: use 'natural' "
                "(natural gradients) or 'adam'."
            )
        natural = self.variational_optimizer == "natural"
        most = self._most_points(model.n_outputs)
        if self._may_be_whole(model):
            # Exact training is then faster than training with fewer points.
            most = max(most, SMALL_TABLE if n <= SMALL_TABLE else 0)
        m = planned_points(self, n, len(inputs.x_mean), most, run)
        inducing = self.inducing
        if not isinstance(inducing, str):
            inducing = check_points("inducing", inducing, inputs.x_mean.size) - inputs.x_mean
            inducing = inducing / inputs.x_scale
        batch = min(n, int(self.batch_size))
        fewest = _STEPS[0] if n <= 200 else _STEPS[1]
        enough = int(np.clip(_EPOCHS * n / batch, fewest, _STEPS[2]))
        steps = enough if self.max_iter == "auto" else int(self.max_iter)
        run.chose("max_iter", steps, f"{_EPOCHS} passes, within {fewest} and {_STEPS[2]} steps")
        rate = float(self.learning_rate)
        own = self.variational_learning_rate
        if own == "auto":
            own = (_WHOLE_RATE if batch == n else _NATURAL_RATE) if natural else rate
            why = "the weight of a batch" if natural else "that of the hyperparameters"
            run.chose("variational_learning_rate", own, why)
        if natural and own > 1:
            raise ValueError(
                f"variational_learning_rate={own!r} is the weight of a batch in a natural gradient "
                "step, at most 1: use a smaller one, or variational_optimizer='adam'."
            )
        settings = SparseSettings(
            m,
            inducing,
            self.optimize_inducing,
            self.optimizer,
            rate,
            self.variational_optimizer,
            float(own),
            batch,
            steps,
        )
        return settings, steps >= enough

    def _report_unused(
        self, model: SparseModel, settings: SparseSettings, n: int, whole: bool, run: FitRun
    ) -> None:
        natural = settings.variational_optimizer == "natural"
        closed = natural and model.likelihood.conjugate
        if self.optimizer is None:
            names = ("learning_rate", "optimize_inducing")
            run.ignores(names, "optimizer=None keeps kernel and inducing points")
            if closed:
                names = ("batch_size", "max_iter", "variational_learning_rate")
                run.ignores(names, "the optimal distribution has a closed form")
        if closed and settings.batch_size == n:
            why = "a step sees all rows and computes the optimal distribution"
            run.ignores("variational_learning_rate", why)
        if whole:
            names = (
                "learning_rate",
                "variational_learning_rate",
                "batch_size",
                "optimize_inducing",
            )
            why = "all rows are inducing points: their exact likelihood is maximised"
            run.ignores(names, why)

    def _new_network(self, X: np.ndarray, scaling: Scaling, run: FitRun) -> Network | None:
        if self.feature_extractor is None or callable(self.feature_extractor):
            run.ignores("activation", "no network is given by its layer sizes")
        if self.feature_extractor is None:
            return None
        network = make_network(X.shape[1], self.feature_extractor, self.activation)
        return LimitedNetwork(network, *standardised_limits(X, scaling.x_mean, scaling.x_scale))

    def _kernel_and_scaling(
        self,
        X: np.ndarray,
        scaling: Scaling,
        network: Network | None,
        unit: float,
        likelihood: Likelihood,
    ) -> tuple[Kernel, Scaling]:
        """The kernel, and the transformation of rows before it.

        A network gets standardised rows. Otherwise rows keep their units, and are only shifted if
        the kernel is stationary, which single precision needs.
        """
        d = len(scaling.x_mean)
        width, spread = (d, scaling.x_scale) if network is None else (network.n_features, 1.0)
        kernel = self._own_kernel(X) if network is None else self._kernel_of_features()
        if kernel is None:
            kernel = self._default_kernel(width, spread, unit, likelihood)
        if network is not None:
            return kernel, scaling
        shift = compile_kernel(kernel, d).origin(scaling.x_mean)
        return kernel, replace(scaling, x_mean=shift, x_scale=np.ones(d))

    def _default_kernel(
        self, width: int, spread: Any, unit: float, likelihood: Likelihood
    ) -> Kernel:
        """The default kernel, with white noise if the likelihood has additive noise."""
        kernel = default_kernel(width, spread, unit)
        return kernel if likelihood.additive else kernel.k1

    def _check_rows(self, model: SparseModel, rows: SparseRows, X: np.ndarray) -> None:
        """Refuse rows that this likelihood cannot take."""

    # ------------------------------------------------------------------ training

    def _train(self, plan: SparsePlan, run: FitRun) -> SparseFit:
        """Train, set the fitted attributes and report."""
        theta, n_start, reason = self._start(plan, run)
        # The noise from an exact start on some rows is too small for inducing points.
        noise = n_start > 0 and self.kernel is None and not (plan.whole or run.stopped)
        noise = noise and plan.model.likelihood.conjugate and plan.model.likelihood.additive
        stepper = run.finish("points", lambda: begin(plan, theta, run.generator, noise))
        run.preview = lambda model, step: model._keep(plan, stepper.fitted())
        n_steps = 0
        if not (plan.whole or run.stopped or stepper.settled):
            n_steps, reason = train_batches(stepper, run)
            known = float(plan.rows.noise.max()) >= KNOWN_NOISE
            # The rows that are left out know nothing of a user's priors.
            free = noise and stepper.belief.closed and not plan.model.kernel.log_prior
            if free and not (known or run.stopped):
                with run.stage("noise", optional=True):
                    stepper.rescale()
        before = stepper.snapshot()

        def belief() -> tuple[SparseFit, int]:
            stepper.restore(before)
            return finished(stepper, n_steps)

        fit, n_steps = run.finish("belief", belief)
        self._keep(plan, fit)
        rate = "variational_learning_rate" if self.optimizer is None else "learning_rate"
        run.ended(reason, n_iter=n_start + n_steps, planned=plan.planned, rate=rate)
        epochs = n_steps * plan.settings.batch_size / len(plan.rows)
        run.reports(jitter=fit.jitter, epochs=epochs)
        return fit

    def _start(self, plan: SparsePlan, run: FitRun) -> tuple[torch.Tensor, int, str]:
        """The starting theta, the number of evaluations and the reason for their end."""
        model, n = plan.model, len(plan.rows)
        kernel = model.kernel
        deep = model.network is not None or n < _FEWEST_START
        if self.optimizer is None or kernel.n_params == 0 or (deep and not plan.whole):
            return kernel.theta0, 0, "converged"
        start_size = rows_for(kernel.n_features, START_ROWS)
        rows = random_rows(n, n if plan.whole else start_size, run.generator)
        X, Y, noise = plan.rows.take(rows)
        if self.kernel is not None and not plan.whole:
            if not (model.likelihood.conjugate and model.likelihood.additive):
                return kernel.theta0, 0, "converged"
            some = GPProblem(kernel, X, Y, noise, prior_weight=len(rows) / n)
            found = compared_start(some, StageSettings(self.optimizer, self.max_iter), run)
            return torch.as_tensor(found.theta), 0, "converged"
        steps = plan.settings.max_iter
        if not plan.whole or self.max_iter == "auto":
            steps = min(steps, START_STEPS)
        starts: list[Start] = [(kernel, X, Y, torch.as_tensor)]
        if not plan.whole:
            starts = self._start_problems(model, X, Y)
        best, n_iter = None, 0
        for start in starts:
            if best is not None and run.stopped:
                break
            found = self._regressed(start, noise, steps, plan, run)
            n_iter += found.result.n_iter
            if best is None or found.explained > best.explained + _CLEARLY_BETTER:
                best = found
        if best.origin:
            run.reports(start=best.origin)
        if model.likelihood.conjugate and model.likelihood.additive:
            check = [a.double() for a in plan.rows.take(rows_to_check(n, run))]
            warn_if_rough(GPProblem(kernel, *check), best.result.theta, n, run)
        return best.theta, n_iter, best.result.stop_reason

    def _regressed(
        self, start: Start, noise: torch.Tensor, steps: int, plan: SparsePlan, run: FitRun
    ) -> _Regressed:
        """An exact regression on some rows, or on all."""
        kernel, X, Y, to_theta = start
        n = len(plan.rows)

        def preview(model: Any, step: TrainingStep) -> None:
            stepper = begin(plan, to_theta(torch.as_tensor(step.theta)), run.generator)
            model._keep(plan, finished(stepper, 0)[0])

        run.preview = preview
        problem = GPProblem(kernel, X, Y, noise, prior_weight=len(X) / n)
        if plan.whole:
            first = start_rows(n, kernel.n_features)
            result = exact_start(problem, run, max_iter=steps, subset_size=first, precise=True)
            return _Regressed(to_theta(torch.as_tensor(result.theta)), result)
        problem = problem.to(torch.float64)
        chosen = chosen_start(problem, run, steps)
        result = exact_start(problem, run, max_iter=steps, theta=chosen.theta)
        theta = torch.as_tensor(result.theta)
        explained = 1 - left_out(problem, theta).unexplained
        return _Regressed(to_theta(theta), result, explained, chosen.describe())

    def _start_problems(self, model: SparseModel, X: torch.Tensor, Y: torch.Tensor) -> list[Start]:
        """Regressions on some rows, of which a later one has to explain clearly more."""
        kernel, p, Y = model.kernel, model.kernel.n_params, model.likelihood.start_targets(Y)
        if not model.likelihood.additive:
            # A regression needs noise, which is the last of its parameters.
            noisy = with_default_noise(kernel.kernel, target_unit(Y.cpu().numpy()))
            priors = {f"k1__{name}": prior for name, prior in kernel.priors.items()}
            kernel = compile_kernel(noisy, kernel.n_features, priors=priors)
        return [(kernel, X, Y, lambda theta: theta[:p])]

    # ------------------------------------------------------------------ fitted state

    def _keep(self, plan: SparsePlan, fit: SparseFit) -> None:
        """Set the fitted attributes."""
        model, dtype = plan.model, plan.rows.source.dtype
        self._keep_scaling(plan.inputs)
        self.kernel_ = model.kernel.to_sklearn(fit.theta.cpu())
        self.likelihood_ = model.likelihood
        # Points may be trained in single precision, but are used in double precision.
        Z = fit.Z.cpu().double().numpy()
        self.inducing_points_ = Z if model.network is not None else Z + plan.inputs.x_mean
        self._set_belief(fit.belief)
        self._network, self._weights = model.network, network_to_numpy(fit.weights)
        self.lower_bound_ = fit.value
        self.dtype_ = str(dtype).removeprefix("torch.")

    def _set_belief(self, belief: WhitenedBelief) -> None:
        self.variational_mean_ = belief.mean.cpu().numpy()
        self.variational_cov_ = belief.covariance.cpu().numpy()

    def _fitted(self, n_outputs: int, device: torch.device) -> tuple[SparseModel, SparseFit]:
        """The model from the fitted attributes, in float64."""
        network = self._network
        width = self.n_features_in_ if network is None else network.n_features
        model = SparseModel(
            compile_kernel(self.kernel_, width), self.likelihood_, n_outputs, network
        )
        weights = [w.to(device) for w in network_from_numpy(self._weights)]
        shift = self._scaling.x_mean if network is None else 0.0
        Z, mean, S = (
            torch.tensor(array, device=device)
            for array in (
                self.inducing_points_ - shift,
                self.variational_mean_,
                self.variational_cov_,
            )
        )
        belief = WhitenedBelief(mean, S, torch.linalg.slogdet(S)[1])
        return model, SparseFit(model.kernel.theta0.to(device), Z, weights, belief)

    def _build_posterior(self) -> InducingPosterior:
        model, fit = self._fitted(len(self.variational_mean_.T), self._fit_device())
        noise = self.likelihood_ if self.likelihood_.additive else Gaussian()
        transform = None if model.network is None else partial(model.features, fit.weights)
        return InducingPosterior(model.kernel, fit.theta, fit.Z, fit.belief, noise, transform)

    def extract_features(self, X: Any) -> np.ndarray:
        """The kernel's input: the output of the network, or the rows if there is none.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.

        Returns
        -------
        features : ndarray of shape (m, q)
            Without a `feature_extractor`, X.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self, "n_iter_")
        X = validated(self, X, dtype=[np.float64, np.float32], reset=False)
        if self._network is None:
            return X
        rows = self._scaling.inputs(X, torch.float64, torch.device("cpu"))
        with torch.no_grad():
            return self._network(network_from_numpy(self._weights), rows).numpy()

    def _absorb(
        self, X: np.ndarray, Y: np.ndarray, noise: np.ndarray, n_outputs: int, run: FitRun
    ) -> None:
        """Update the belief with further rows; keeps hyperparameters and inducing points."""
        seen, passes = self.n_samples_seen_, _PASSES
        if self.max_iter != "auto":
            passes = int(self.max_iter)
        model, fit = self._fitted(n_outputs, run.device)
        check_categories(model.kernel, X)
        m, s = len(fit.Z), model.n_factors
        run.check_memory(
            8 * m * m * (6 + 6 * s),
            f"{m} inducing points with {s} covariances of {m} x {m}",
            "fit with fewer inducing points",
        )
        source = RowSource(X, Y, self._scaling, torch.float64, run.device)
        rows = SparseRows(source, torch.as_tensor(noise).to(run.device))
        self._check_rows(model, rows, X)
        run.begin(X, Y, seen)
        generator = torch.Generator().manual_seed(seen)
        belief, n_iter, reason = absorb(model, rows, fit, run, generator, passes)
        self._set_belief(belief)
        run.chose("max_iter", passes, "passes over the new rows; Gaussian noise needs one")
        run.ended(reason, n_iter=n_iter, planned=passes >= _PASSES)
        run.reports(epochs=float(n_iter), summary=f"{len(X)} rows beside {seen} earlier ones")
