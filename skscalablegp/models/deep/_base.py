"""Common parts of the deep-kernel regressors: features, random batches and a last exact pass."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.utils.validation import check_is_fitted
from torch.distributions import LowRankMultivariateNormal

from ..._compat import fit_context
from ..._end import End
from ...core import (
    NOISE_SHARE,
    ExactProcess,
    FitRun,
    Given,
    GivenRows,
    Machine,
    MinibatchGPRegressorBase,
    StageSettings,
    data_scaled_kernel,
    fit_exactly,
    to_numpy,
    to_torch,
)
from ...core.data import (
    BLOCK_ROWS,
    RowSource,
    Scaling,
    Table,
)
from ...core.likelihoods import Gaussian
from ...core.posteriors import (
    FeatureWeights,
    LinearPosterior,
    Posterior,
    Solved,
    WeightFeatures,
    inverse_root,
)
from ...core.training import train_steps
from ...features import (
    check_features,
    has_first_layer,
    make_network,
    network_from_numpy,
    network_to_numpy,
    weigh_inputs,
)
from ...kernels import NoSpectralDensity, compile_kernel
from ...linalg.gradients import ExactEvaluation
from ._batch import BatchGradient
from ._features import DeepFeatures, make_deep_features
from ._noise import LARGEST_NOISE, with_white_noise
from ._plan import MOST_SCORES, DeepPlan, is_default
from ._plan import plan as make_plan
from ._source import (
    check_roughness,
    first_factors,
    ranges,
    repeated,
    resident,
    sampled,
    split_rows,
)
from ._stepper import TrainingRows, WeightSpaceStepper, cosine

# Training has diverged if the log likelihood per row has fallen by this many nats.
_LOSS = 0.05
# The default kernel.
_LINEAR = ConstantKernel(1.0, (1e-6, 1e6)) * DotProduct(1.0, (1e-3, 1e3))
# Parameters of the features, which a stream keeps.
_OF_FEATURES = ("kernel", "feature_extractor", "activation", "n_components", "min_noise")


class DeepKernelRegressorBase(MinibatchGPRegressorBase):
    """A feature map, a gradient rule that subclasses choose, and a final exact pass."""

    _sums_rows = True
    # A uniform sample of the rows so far, in their own units, with known noise in the model's.
    _kept: Any

    def _has_low_rank_form(self) -> bool:
        return True

    def _leaves_out(self) -> str:
        # The targets of all rows have formed the features.
        return ""

    @abstractmethod
    def _rule(self, batch_size: int, m: int, run: FitRun) -> BatchGradient:
        """The rule that makes a gradient from a batch of m features."""

    def _batches(
        self, source: RowSource, size: int, generator: torch.Generator
    ) -> Callable[[], Iterator[Any]]:
        """A function that makes iterators over batches."""
        return lambda: source.batches(size, generator)

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None, sample_weight=None):
        """Train the features, then compute the weights' exact posterior in one pass over the rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; a large `np.memmap` of floats is read a batch at a time and not copied.
        y : array-like of shape (n,) or (n, t)
            Targets, which share the features.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. The learned noise,
            `noise_variance_`, is added to it. Cross-validation splits it if metadata routing is
            enabled.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            with equal targets are merged before the fit, so that weights and repeated rows give the
            same model. A memory map is searched for equal rows, and then copied, only with weights.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            For input or settings the model cannot honour.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            given = self._given(X, y, noise_variance, sample_weight)
            plan = make_plan(self, len(given), run.machine)
            run.follow(plan)
            source = self._source(given, plan.precision, run)
            if plan.exact_instead:
                source = source.here()
                run.begin(source.X, source.Y, n_rows=source.n_rows)
                self._fit_rows(source, run)
                return self
            features = self._new_features(source, plan, run, run.generator)
            rows = split_rows(source, plan, self.validation_fraction, run)
            tensors = self._first_tensors(features, rows.source, plan, run, run.generator)
            run.begin(source.X, source.Y, n_rows=source.n_rows)
            steps = plan.max_epochs.value * plan.steps_per_epoch(len(rows.source))
            stepper = WeightSpaceStepper(
                features.on(run.machine),
                tensors,
                rows,
                plan,
                self._rule(plan.batch_size.value, features.n_features, run),
                self._batches(rows.source, plan.batch_size.value, run.generator),
                schedule=cosine(steps, run.budget.spent),
            )
            self._learn(stepper, steps, source, run)
            if is_default(self) and rows.held_out is not None:
                check_roughness(stepper.unexplained(), source, run)
            self._keep_sample(source, run)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, noise_variance=None):
        """Train on one more chunk of a stream, by one pass of random batches over it.

        The first chunk sets the units, and should therefore resemble the others. The posterior is
        computed from a uniform sample of at most 8,192 of all rows so far, which stands for all of
        them; after `fit` the sample also contains rows of that fit. Every pass starts its optimiser
        anew, with a constant learning rate. A stream always has a network: after a `fit` without
        one, `partial_fit` trains a network on the rows of both.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows of the chunk.
        y : array-like of shape (n,) or (n, t)
            Their targets.
        noise_variance : float or array-like of shape (n,), optional
            As in `fit`.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            For rows unlike those of the first call, or settings the model cannot honour.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            seen = getattr(self, "n_samples_seen_", 0)
            X, Y = self._read_rows(X, y, reset=not seen)
            if seen and Y.shape[1] != self._n_outputs():
                raise ValueError(
                    f"y has {Y.shape[1]} targets, but earlier chunks had {self._n_outputs()}."
                )
            if seen and self._exact is not None:
                X, Y, noise_variance = self._joined(X, Y, noise_variance)
                seen = 0
            given = GivenRows(self, X, Y, noise_variance)
            plan = make_plan(self, len(X), run.machine, stream=True)
            run.follow(plan)
            random_state, generator = self._seeds(seen, run)
            if not seen:
                source = self._source(given, plan.precision, run)
                features = self._new_features(source, plan, run, generator)
                tensors = self._first_tensors(features, source, plan, run, generator)
            else:
                source = self._source(given, plan.precision, run, self._scaling)
                features, tensors = self._trained(plan.precision)
                run.ignores(_OF_FEATURES, "the first chunk determined the features")
                run.ignores("normalize_y", "the first chunk determined the units")
            kept = sampled(self._kept if seen else None, (X, Y, source.noise), seen, random_state)
            sample = RowSource.of(*kept[:2], source.scaling, source.dtype, source.device, kept[2])
            run.begin(X, Y, seen)
            stepper = WeightSpaceStepper(
                features.on(run.machine),
                tensors,
                TrainingRows(source, sample, seen + len(X)),
                plan,
                self._rule(plan.batch_size.value, features.n_features, run),
                self._batches(source, plan.batch_size.value, generator),
            )
            self._learn(stepper, plan.steps_per_epoch(len(X)), sample, run, stream=True)
            self._kept = kept
        return self

    def _seeds(self, seen: int, run: FitRun) -> tuple[np.random.RandomState, torch.Generator]:
        """Generators that are the same for the same stream, and differ between its chunks."""
        if not seen:
            self._stream = int(run.random_state.randint(2**31 - 1))
            return run.random_state, run.generator
        random_state = np.random.RandomState((self._stream + seen) % (2**31 - 1))
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        return random_state, generator

    def _joined(self, X: np.ndarray, Y: np.ndarray, noise_variance: Any) -> tuple:
        """The rows of a fit without a network and further rows, in their own units."""
        rows, targets, noise = self._kept
        if noise_variance is not None or noise.any():
            given = np.broadcast_to(0.0 if noise_variance is None else noise_variance, len(X))
            noise_variance = np.append(noise * self._scaling.y_scale[0] ** 2, given)
        return np.concatenate([rows, X]), np.concatenate([targets, Y]), noise_variance

    def _keep_sample(self, source: RowSource, run: FitRun) -> None:
        """Keep a sample of the rows, with which `partial_fit` fits later ones."""
        some = source.subset(repeated(source.weight, run.random_state)).here()
        self._kept, self._stream = (some.X, some.Y, some.noise), 0

    def _with_rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> Any:
        """As in the base class: no feature and no unit changes, as ``partial_fit`` would."""
        other, scaling = copy(self), self._scaling
        known = other._known_noise(noise_variance, len(X), scaling, Gaussian(), reset=False)
        targets = (y.reshape(len(X), -1) - scaling.y_mean) / scaling.y_scale
        rows, posterior = self._inputs(X), self._posterior()
        other.n_samples_seen_ += len(X)
        if self._exact is not None:
            more = Table(rows.cpu().numpy(), targets, scaling.y_mean, scaling.y_scale, known)
            joined = ExactProcess(self._exact.table.joined(more), self._exact.kernel)
            other._kept = tuple(
                map(np.append, self._kept, (X, y.reshape(len(X), -1), known), (0, 0, 0))
            )
            other._keep_exactly(joined)
            return other
        noise = posterior.noise(rows) + torch.as_tensor(known, device=rows.device)
        phi, Y = posterior.psi(rows), torch.as_tensor(targets, device=rows.device)
        before = FeatureWeights.of(self, rows.device)
        weights = before.given(phi, Y, noise)
        predicted = (phi @ before.mean).T, phi @ inverse_root(before.factor), noise
        density = LowRankMultivariateNormal(*predicted).log_prob(Y.T)
        other.log_marginal_likelihood_value_ += float(density.sum())
        other.coef_ = weights.mean.cpu().numpy()
        other.coef_precision_cholesky_ = weights.factor.cpu().numpy()
        other._remember(None)
        return other

    # ------------------------------------------------------------------ without a network

    _of_method = ("coef_", "coef_precision_cholesky_", "_features", "_tensors")

    def _fit_rows(self, source: RowSource, run: FitRun) -> None:
        """Fit the exact process of all standardised rows instead of a deep kernel."""
        all_rows = source.take(slice(None))
        rows, targets = all_rows.X.cpu().numpy(), all_rows.Y.cpu().numpy()
        kernel, scaling = data_scaled_kernel(rows, targets, counts=source.weight), source.scaling
        low, white = self.min_noise**2, kernel.k2.noise_level
        kernel.set_params(
            k2__noise_level=max(low, white), k2__noise_level_bounds=(low, LARGEST_NOISE)
        )
        self._keep_sample(source, run)
        self._keep_scaling(scaling)
        units = scaling.y_mean, scaling.y_scale
        repeats = np.array(source.weight), np.zeros(len(source))
        table = Table(rows, targets, *units, np.array(source.noise), 0.0, *repeats)
        compiled = compile_kernel(kernel, rows.shape[1])
        fit_exactly(table, compiled, StageSettings("auto"), run, planned=True)

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        evaluation = super()._keep_exactly(process)
        self.kernel_, self.noise_variance_ = process.kernel.k1, process.kernel.k2.noise_level
        return evaluation

    # ------------------------------------------------------------------ parts of a fit

    def _source(
        self, given: Given, dtype: torch.dtype, run: FitRun, scaling: Scaling | None = None
    ) -> RowSource:
        """Rows in the units of a scaling, by default in those of their standard deviations.

        normalize_y=False keeps the mean of y.
        """
        first = scaling is None
        if scaling is None:
            moments = given.target_moments()
            y_mean, y_scale = moments.scales()
            if not run.normalizes(given.Y, scaled=True):
                squares = moments.squares / moments.n + np.square(moments.mean)
                y_mean, y_scale = np.zeros_like(y_mean), np.sqrt(squares)
            y_scale = self._divisors(y_scale, given.known)
            scaling = Scaling(*given.robust_moments(), y_mean, y_scale)
        device = run.machine.device
        return resident(given.source(scaling, Gaussian(), device, dtype, reset=first))

    def _divisors(self, y_scale: np.ndarray, noise_variance: Any) -> np.ndarray:
        """Numbers by which targets of these scales are divided."""
        y_scale = np.where(y_scale > 0, y_scale, 1.0)
        if noise_variance is None or self.normalize_y is True:
            return y_scale
        # Noise in units of y needs the same divisor for all targets.
        return np.full_like(y_scale, np.sqrt(np.mean(np.square(y_scale))))

    def _new_features(
        self,
        source: RowSource,
        plan: DeepPlan,
        run: FitRun,
        generator: torch.Generator,
    ) -> DeepFeatures:
        layers, count = plan.feature_extractor.value, self.n_components
        network = make_network(source.X.shape[1], layers, self.activation)
        if callable(layers) or not network.n_trainable:
            run.ignores("activation", "feature_extractor gives no layer sizes")
        kernel = self._kernel_of_features() or _LINEAR
        least = self.min_noise**2
        noisy = with_white_noise(kernel, network.n_features, max(NOISE_SHARE, least), least)
        own_noise = noisy.kernel == kernel
        if own_noise:
            run.ignores("min_noise", "the WhiteKernel has bounds of its own")
        try:
            features = make_deep_features(
                network, noisy, not own_noise, count, generator, ranges(source)
            )
        except NoSpectralDensity as error:
            raise NoSpectralDensity(
                f"{error.cause}, so that the kernel has no finite features: use sums or products "
                "of RBF, Matern, RationalQuadratic, DotProduct and constants."
            ) from None
        if not features.random:
            run.ignores("n_components", "this kernel's features are exact")
        m, q = features.n_features, network.n_features
        run.check_memory(
            8 * (10 * m * m + 3 * 4096 * (m + q)),
            f"A feature map of {m} columns (ten {m} x {m} matrices)",
            f"use a smaller n_components than {count}, or a narrower last layer than {q}",
        )
        with torch.no_grad():
            rows = source.take(slice(0, 256)).X.cpu()
            check_features(features.embed(features.initial(generator, rows.dtype), rows))
        return features

    def _first_tensors(
        self,
        features: DeepFeatures,
        source: RowSource,
        plan: DeepPlan,
        run: FitRun,
        generator: torch.Generator,
    ) -> list[torch.Tensor]:
        """Initial tensors, whose layers begin with the columns that matter to an exact process."""
        tensors = features.initial(generator, plan.precision)
        if plan.new_optimizer is None or not has_first_layer(features.network):
            return tensors
        return weigh_inputs(features.network, tensors, first_factors(source, run))

    def _learn(
        self,
        stepper: WeightSpaceStepper,
        steps: int,
        rows: RowSource,
        run: FitRun,
        stream: bool = False,
    ) -> None:
        """Train, and finish by an exact pass over `rows`, which stand for all rows so far."""
        plan, n = stepper.plan, self.n_samples_seen_ if stream else rows.n_rows
        run.preview = lambda model, step: model._keep(stepper, rows, n)
        steps = 0 if plan.new_optimizer is None else steps
        every = max(1, math.ceil(steps / (MOST_SCORES if stream else plan.n_scores)))
        run.monitor.begin("batches", math.ceil(steps / every) + 1, stepper.objective_name)
        result = train_steps(
            stepper,
            max_steps=steps,
            check_every=every,
            monitor=run.monitor,
            n_iter_no_change=None if stream else self.n_iter_no_change,
            tol=self.tol,
            epochs_per_step=plan.batch_size.value / len(stepper.rows.source),
            keep_best=not stream,
        )
        if not math.isfinite(result.score):
            raise ValueError(
                "No parameters have a finite likelihood, not even the initial ones. Look for "
                "extreme values in the columns and the target, or use dtype='float64'."
            )
        run.reports(jitter=run.finish("posterior", lambda: self._keep(stepper, rows, n)))
        run.reports(
            epochs=result.n_steps / plan.steps_per_epoch(len(stepper.rows.source)),
            slope_bias=stepper.slope_bias,
            summary=f"{stepper.features.n_features} features, batches of {plan.batch_size.value}, "
            f"learning rate {plan.learning_rate.value:g}, {plan.dtype.value} on {run.device}",
        )
        if plan.new_optimizer is None:
            return
        reason, values = result.stop_reason, stepper.likelihoods
        if result.score == -run.monitor.steps[0].objective and values[-1] < values[0] - _LOSS:
            # An exact pass repairs the weights, so that the likelihood is finite, but it is lower
            # than without training. The score alone does not show this: held-out rows also prefer
            # the start if a network overfits.
            reason = End.DIVERGED
        run.ended(reason, n_iter=result.n_steps, planned=True, limit="max_epochs")

    def _keep(self, stepper: WeightSpaceStepper, rows: RowSource, n: int | float) -> float:
        """Store the arrays that predictions need, from an exact pass; returns the jitter."""
        settled, features = stepper.finish(rows, n), stepper.features
        weights, theta = settled.evaluation.posterior(settled.noise), features.theta_at
        self.kernel_ = features.kernel_at(settled.tensors[theta])
        self.noise_variance_ = settled.noise
        self.coef_ = weights.mean.cpu().numpy()
        self.coef_precision_cholesky_ = weights.factor.cpu().numpy()
        self.log_marginal_likelihood_value_ = settled.evaluation.value
        self._features = to_numpy(features.on(Machine()))
        # In the precision of training. The last pass only converts them.
        self._tensors = network_to_numpy(stepper.tensors)
        self._tensors[theta] = settled.tensors[theta].cpu().numpy().copy()
        self._keep_scaling(rows.scaling)
        self.dtype_ = stepper.plan.dtype.value
        return settled.evaluation.jitter

    # ------------------------------------------------------------------ after training

    def _trained(self, dtype: torch.dtype) -> tuple[DeepFeatures, list[torch.Tensor]]:
        """The fitted feature map and its tensors."""
        features, tensors = to_torch(self._features), network_from_numpy(self._tensors, dtype)
        tensors[features.theta_at] = torch.tensor(self._tensors[features.theta_at])
        return features, [tensor.to(self._posterior_device()) for tensor in tensors]

    def _kernel_sees_rows(self) -> bool:
        # The only tensor of a model without a network is theta.
        return self._exact is not None or len(self._tensors) == 1

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), "_kept")

    def _build_posterior(self) -> Posterior:
        features, tensors = self._trained(torch.float64)
        weights = FeatureWeights.of(self, self._posterior_device())
        features = WeightFeatures(features.module(tensors), self.noise_variance_)
        return LinearPosterior(features, weights.mean, Solved(weights.factor), learned=True)

    def extract_features(self, X) -> np.ndarray:
        """Inputs of the kernel: the outputs of the network, divided by the root of their number.

        If the kernel is stationary, they are multiplied by 3, so that its length scales can start
        at 1.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.

        Returns
        -------
        Z : ndarray of shape (m, q)
            The inputs of the kernel; the standardised rows themselves if there is no network.
        """
        X = self._rows(X)
        if self._exact is not None:
            return self._inputs(X).cpu().numpy()
        features, tensors = self._trained(torch.float64)
        with torch.no_grad():
            parts = [
                features.embed(tensors, self._inputs(X[start : start + BLOCK_ROWS]))
                for start in range(0, len(X), BLOCK_ROWS)
            ]
        return torch.cat(parts).cpu().numpy()

    def log_marginal_likelihood(self, theta=None, eval_gradient: bool = False) -> float:
        """The exact log marginal likelihood of the training rows, in normalised units.

        Parameters
        ----------
        theta : None
            Other values are not available, because no training rows are stored.
        eval_gradient : bool, default=False
            Not available.

        Returns
        -------
        value : float
            Summed over targets.

        Raises
        ------
        ValueError
            For a theta, or a gradient.
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self, "n_iter_")
        if theta is not None or eval_gradient:
            raise ValueError(
                f"{type(self).__name__} keeps no training rows and only knows the value at the "
                "trained parameters: call log_marginal_likelihood() without arguments."
            )
        return self.log_marginal_likelihood_value_
