"""The fit that the variational regressor and classifier share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ..._end import End
from ..._validation import check_points, validated
from ...core import (
    FEW_ROWS,
    KNOWN_NOISE,
    MOST_STEPS,
    Choice,
    FitRun,
    StageSettings,
    StartRows,
    affordable_size,
    asked_once,
    below_the_noise_bound,
    check_categories,
    chosen_start,
    compared_start,
    exact_start,
    exact_summary,
    left_out,
    random_rows,
    resolve,
    rows_for,
    start_rows,
    target_unit,
    unmoved,
    warn_if_rough,
    with_default_noise,
)
from ...core.data import RowSource, Scaling, standardised_limits
from ...core.likelihoods import Gaussian, Likelihood
from ...core.training import QuasiNewton, TrainingStep
from ...features import (
    LimitedNetwork,
    Network,
    make_network,
    network_from_numpy,
    network_to_numpy,
)
from ...kernels import TorchKernel, compile_kernel, default_kernel
from ...linalg.gradients import GPProblem, Rows
from ._bound import WhitenedBelief
from ._plan import MOST_POINTS, SparsePlan, plan_batches
from ._posterior import InducingPosterior
from ._stepper import SparseFit, SparseModel, SparseTraining, drawn_rows
from ._training import (
    START_ROWS,
    START_STEPS,
    absorb,
    begin,
    finished,
    train_batches,
)

# Most passes over rows that are added later.
_PASSES = 30
# A further regression is the start if it explains so much more of the variance in leave-one-out.
# The likelihood would often choose it for labels, which are not normal, and mislead: of nine splits
# of three small tables of classes, with gains of at most 0.05, it made the log loss worse on seven.
_CLEARLY_BETTER = 0.1

# A kernel, rows, targets, and a function from the kernel's theta to the model's.
Start = tuple[TorchKernel, Rows, Callable[[torch.Tensor], torch.Tensor]]


class SparseMixin:
    """Settings, training and fitted attributes; a subclass reads the table."""

    _objective = "lower_bound_"
    # Fewest rows for which a start on some rows is worthwhile.
    _fewest_start = 100

    # ------------------------------------------------------------------ settings

    def _most_points(self, n_outputs: int) -> int:
        """The value of n_inducing="auto" on large tables."""
        return MOST_POINTS

    def _prepare(
        self,
        source: RowSource,
        likelihood: Likelihood,
        n_outputs: int,
        run: FitRun,
    ) -> SparseTraining:
        """The model, the plan and the rows, before any work."""
        n, d, scaling = len(source), source.X.shape[1], source.scaling
        network = self._new_network(source.X, scaling)
        targets = torch.as_tensor((source.Y - scaling.y_mean) / scaling.y_scale)
        constant, start_targets = None, likelihood.start_targets(targets)
        if likelihood.classes or (self.kernel is None and not likelihood.additive):
            # A kernel that is given for a regression is the prior of its latent function.
            # At ranks, the targets are those of some rows.
            counts = source.weight[: len(targets)]
            constant = likelihood.constant(targets, n_outputs, counts)
            start_targets = start_targets if likelihood.classes else start_targets - constant
        unit = target_unit(start_targets.numpy(), source.weight[: len(targets)])
        kernel, inputs = self._kernel_and_scaling(source.X, scaling, network, unit, likelihood)
        width = d if network is None else network.n_features
        noisy = likelihood.conjugate and source.noise_range()[1] < KNOWN_NOISE
        priors = self._priors(kernel, (n, width), noisy and network is None, run)
        compiled = compile_kernel(kernel, width, priors=priors)
        machine = run.machine
        model = SparseModel(compiled, likelihood, n_outputs, network, machine)
        plan = plan_batches(self, model, n, d, self._most_points(n_outputs))
        run.follow(plan)
        source = replace(source, scaling=inputs, dtype=plan.precision).resident()
        self._check_rows(model, source)
        weights = [] if network is None else network.initial(run.generator, plan.precision)
        weights = [w.to(machine.device) for w in weights]
        plan = self._scaled_points(plan, inputs)
        if not plan.whole:
            plan = self._within_time(model, source, plan, weights, run)
        replaced = f"{exact_summary(n)}: " if plan.whole else ""
        run.reports(
            summary=f"{replaced}{plan.n_inducing.value} inducing points, batches of "
            f"{plan.batch_size}, in {plan.dtype.value} on "
            f"{machine.device if plan.whole else run.device}"
        )
        return SparseTraining(model, source, plan, weights, unit, constant)

    def _within_time(
        self,
        model: SparseModel,
        source: RowSource,
        plan: SparsePlan,
        weights: list[torch.Tensor],
        run: FitRun,
    ) -> SparsePlan:
        """The plan with as many points as there is time for."""
        points, given = plan.n_inducing.value, plan.inducing

        def evaluate(m: int, some: int) -> None:
            Z = source.take(slice(0, m)).X
            small = replace(plan, n_inducing=Choice(m, ""), inducing=Z, batch_size=some)
            timed = SparseTraining(model, source, small, [w.clone() for w in weights], 1.0)
            begin(timed, model.kernel.theta0, torch.Generator()).step()

        m = affordable_size("n_inducing", points, len(source), evaluate, run)
        if m == points:
            return plan
        if not isinstance(given, str):
            given = given[random_rows(points, m, run.generator).numpy()]
        fewer = Choice(m, "there is no time for more")
        return replace(plan, n_inducing=fewer, inducing=given)

    def _scaled_points(self, plan: SparsePlan, inputs: Scaling) -> SparsePlan:
        """The plan with the inducing points that the user has given in the model's units."""
        if isinstance(self.inducing, str):
            return plan
        points = check_points("inducing", self.inducing, inputs.x_mean.size)
        points = (points - inputs.x_mean) / inputs.x_scale
        return replace(plan, inducing=points)

    def _new_network(self, X: np.ndarray, scaling: Scaling) -> Network | None:
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

    def _check_rows(self, model: SparseModel, source: RowSource) -> None:
        """Refuse rows that this likelihood cannot take."""

    # ------------------------------------------------------------------ training

    def _train(self, training: SparseTraining, run: FitRun) -> SparseFit:
        """Train, set the fitted attributes and report."""
        if training.plan.whole:
            training, theta, n_start, reason = self._maximised(training, run)
        else:
            theta, n_start, reason = self._start(training, run)
        # The noise from an exact start on some rows is too small for inducing points.
        noise = n_start > 0 and self.kernel is None and not (training.plan.whole or run.stopped)
        noise = noise and training.model.likelihood.conjugate and training.model.likelihood.additive
        stepper = run.finish("points", lambda: begin(training, theta, run.generator, noise))
        run.preview = lambda model, step: model._keep(training, stepper.fitted())
        n_steps = 0
        if not (training.plan.whole or run.stopped or stepper.settled):
            n_steps, reason = train_batches(stepper, run)
            known = training.source.noise_range()[1] >= KNOWN_NOISE
            # The density of held-out rows does not contain a user's priors.
            free = noise and stepper.belief.closed and not training.model.kernel.log_prior
            if free and not (known or run.stopped):
                with run.stage("noise", optional=True):
                    stepper.rescale()
        before = stepper.snapshot()

        def belief() -> tuple[SparseFit, int]:
            stepper.restore(before)
            return finished(stepper, n_steps)

        fit, n_steps = run.finish("belief", belief)
        self._keep(training, fit)
        rate = "variational_learning_rate" if self.optimizer is None else "learning_rate"
        run.ended(reason, n_iter=n_start + n_steps, planned=training.plan.enough, rate=rate)
        epochs = n_steps * training.plan.batch_size / len(training.source)
        run.reports(jitter=fit.jitter, epochs=epochs)
        return fit

    def _maximised(
        self, training: SparseTraining, run: FitRun
    ) -> tuple[SparseTraining, torch.Tensor, int, End]:
        """The maximum of the exact likelihood, where all rows are inducing points.

        Also returns the training with the kernel whose bounds hold there, the number of
        evaluations, and the reason for their end.
        """
        model, n = training.model, len(training.source)
        kernel, steps = model.kernel, training.plan.max_iter.value
        run.preview = self._preview(training, torch.as_tensor, run)
        rows = training.source.take(random_rows(n, n, run.generator))
        problem = GPProblem(kernel, rows)
        settings = StageSettings(QuasiNewton(), MOST_STEPS if self.max_iter == "auto" else steps)
        first, most = start_rows(n, kernel.n_features), settings.max_iter
        result = exact_start(problem, run, max_iter=most, subset_size=first, precise=True)
        kernel, result = below_the_noise_bound(problem, kernel, result, settings, run)
        training = replace(training, model=replace(model, kernel=kernel))
        return training, torch.as_tensor(result.theta), result.n_iter, result.stop_reason

    def _preview(
        self,
        training: SparseTraining,
        to_theta: Callable[[torch.Tensor], torch.Tensor],
        run: FitRun,
    ) -> Callable[[Any, TrainingStep], None]:
        """Sets the model of a step of an exact regression in a copy of the estimator."""

        def preview(model: Any, step: TrainingStep) -> None:
            stepper = begin(training, to_theta(torch.as_tensor(step.theta)), run.generator)
            model._keep(training, finished(stepper, 0)[0])

        return preview

    def _start(self, training: SparseTraining, run: FitRun) -> tuple[torch.Tensor, int, End]:
        """The starting theta, the number of evaluations and the reason for their end."""
        model, n = training.model, len(training.source)
        kernel = model.kernel
        deep = model.network is not None or n < self._fewest_start
        if self.optimizer is None or kernel.n_params == 0 or deep:
            return kernel.theta0, 0, End.CONVERGED
        size = rows_for(kernel.n_features, START_ROWS)
        rows = self._start_rows(training.source, size, run)
        if self.kernel is not None:
            if not (model.likelihood.conjugate and model.likelihood.additive):
                return kernel.theta0, 0, End.CONVERGED
            some = _exact(training, kernel, rows)
            start = compared_start(some, StageSettings(self.optimizer, self.max_iter), run)
            return torch.as_tensor(start.theta), 0, End.CONVERGED
        steps = min(training.plan.max_iter.value, START_STEPS)
        starts = self._start_problems(model, rows, training.constant)
        best, n_iter, ask = None, 0, asked_once()
        for regressed, some, to_theta in starts:
            if best is not None and run.stopped:
                break
            run.preview = self._preview(training, to_theta, run)
            problem = _exact(training, regressed, some).to(torch.float64)
            chosen = chosen_start(problem, run, steps, ask)
            problem = replace(problem, tied=chosen.tied)
            result = exact_start(problem, run, max_iter=steps, theta=chosen.theta)
            n_iter, theta = n_iter + result.n_iter, torch.as_tensor(result.theta)
            explained = 1 - left_out(problem, theta).unexplained
            if best is None or explained > best[0] + _CLEARLY_BETTER:
                best = explained, to_theta(theta), result, chosen.describe()
        _, theta, result, origin = best
        if origin:
            run.reports(start=origin)
        if model.likelihood.conjugate and model.likelihood.additive:
            drawn = drawn_rows(training.source, 3 * FEW_ROWS, unmoved(run.generator))
            check = _exact(training, kernel, training.source.counted(*drawn))
            warn_if_rough(check.to(torch.float64), result.theta, n, run)
        return theta, n_iter, result.stop_reason

    def _start_rows(self, source: RowSource, size: int, run: FitRun) -> Rows:
        """Random rows, with neighbours among them where random ones hold none."""

        def read(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            some = source.take(torch.as_tensor(index))
            return some.X.double().cpu().numpy(), some.Y.double().cpu().numpy()

        rows = StartRows(len(source), source.X.shape[1], read)
        run.fast = rows.fast
        return source.counted(*rows.counted(*drawn_rows(source, size, run.generator)))

    def _start_problems(
        self, model: SparseModel, rows: Rows, constant: torch.Tensor | None
    ) -> list[Start]:
        """Regressions on some rows, of which a later one has to explain clearly more."""
        kernel, p = model.kernel, model.kernel.n_params
        Y = model.likelihood.start_targets(rows.Y)
        Y = Y if constant is None else Y - constant.to(Y)
        if not model.likelihood.additive:
            # A regression needs noise, which is the last of its parameters.
            noisy = with_default_noise(kernel.kernel, target_unit(Y.cpu().numpy()))
            priors = {f"k1__{name}": prior for name, prior in kernel.priors.items()}
            kernel = compile_kernel(noisy, kernel.n_features, priors=priors)
        return [(kernel, replace(rows, Y=Y), lambda theta: theta[:p])]

    # ------------------------------------------------------------------ fitted state

    def _keep(self, training: SparseTraining, fit: SparseFit) -> None:
        """Set the fitted attributes."""
        model, scaling = training.model, training.source.scaling
        self._keep_scaling(scaling)
        self.kernel_ = model.kernel.to_sklearn(fit.theta.cpu())
        self.likelihood_ = model.likelihood
        # Points may be trained in single precision, but are used in double precision.
        Z = fit.Z.cpu().double().numpy()
        self.inducing_points_ = Z if model.network is not None else Z + scaling.x_mean
        self._set_belief(fit.belief)
        self._network, self._weights = model.network, network_to_numpy(fit.weights)
        self.lower_bound_ = fit.value
        self.dtype_ = training.plan.dtype.value

    def _set_belief(self, belief: WhitenedBelief) -> None:
        self.variational_mean_ = belief.mean.cpu().numpy()
        self.variational_cov_ = belief.covariance.cpu().numpy()
        self.latent_constant_ = belief.constant.cpu().numpy()

    def _fitted(self, n_outputs: int, device: torch.device) -> tuple[SparseModel, SparseFit]:
        """The model from the fitted attributes, in float64."""
        network = self._network
        width = self.n_features_in_ if network is None else network.n_features
        model = SparseModel(
            compile_kernel(self.kernel_, width), self.likelihood_, n_outputs, network
        )
        weights = [w.to(device) for w in network_from_numpy(self._weights)]
        shift = self._scaling.x_mean if network is None else 0.0
        Z, mean, S, constant = (
            torch.tensor(array, device=device)
            for array in (
                self.inducing_points_ - shift,
                self.variational_mean_,
                self.variational_cov_,
                self.latent_constant_,
            )
        )
        belief = WhitenedBelief(mean, S, torch.linalg.slogdet(S)[1], constant)
        return model, SparseFit(model.kernel.theta0.to(device), Z, weights, belief)

    def _build_posterior(self) -> InducingPosterior:
        device = self._posterior_device()
        model, fit = self._fitted(len(self.variational_mean_.T), device)
        noise = self.likelihood_ if self.likelihood_.additive else Gaussian()
        network = None if model.network is None else model.network.module(fit.weights)
        return InducingPosterior(model.kernel, fit.theta, fit.Z, fit.belief, noise, network)

    def extract_features(self, X) -> np.ndarray:
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
        self, source: RowSource, n_outputs: int, run: FitRun
    ) -> tuple[SparseModel, SparseFit]:
        """Update the belief with further rows; keeps hyperparameters and inducing points.

        Returns the model and the updated fit.
        """
        seen, X = self.n_samples_seen_, source.X
        passes = resolve(
            self.max_iter, _PASSES, "passes over the new rows; Gaussian noise needs one"
        )
        model, fit = self._fitted(n_outputs, run.machine.device)
        check_categories(model.kernel, X)
        m, s = len(fit.Z), model.n_factors
        run.check_memory(
            8 * m * m * (6 + 6 * s),
            f"{m} inducing points with {s} covariances of {m} x {m}",
            "fit with fewer inducing points",
        )
        self._check_rows(model, source)
        run.begin(X, source.Y, seen, n_rows=source.n_rows)
        generator = torch.Generator().manual_seed(seen)
        belief, n_iter, reason = absorb(model, source, fit, run, generator, int(passes.value))
        self._set_belief(belief)
        run.chose("max_iter", *passes)
        run.ended(reason, n_iter=n_iter, planned=passes.value >= _PASSES)
        run.reports(epochs=float(n_iter), summary=f"{len(X)} rows beside {seen} earlier ones")
        return model, replace(fit, belief=belief)


def _exact(training: SparseTraining, kernel: TorchKernel, some: Rows) -> GPProblem:
    """The exact regression on some rows."""
    return GPProblem(kernel, some, prior_weight=some.n_rows / training.source.n_rows)
