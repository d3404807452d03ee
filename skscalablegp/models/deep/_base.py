"""What the deep-kernel regressors share: features, random batches, a last exact pass."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.utils.validation import check_is_fitted, validate_data

from ..._compat import Interval, StrOptions, fit_context
from ..._validation import check_memory, resolve_dtype
from ...core import (
    MinibatchGPRegressorBase,
    budget_of,
    make_monitor,
    seeded,
    shared_parameters,
    to_numpy,
    to_torch,
    training_device,
    unfinished,
    warn_once,
)
from ...core.data import RowSource, Scaling, column_moments
from ...core.posteriors import FeaturePosterior, FeatureWeights
from ...core.training import Monitor, train_steps
from ...features import (
    ACTIVATIONS,
    check_features,
    make_network,
    network_from_numpy,
    network_to_numpy,
)
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel
from ._batch import BatchGradient
from ._features import DeepFeatures, make_deep_features
from ._space import DeepFeatureSpace
from ._stepper import BATCH_OPTIMIZERS, WeightSpaceStepper, cosine

# "auto": this many steps of 64 rows, within these epochs.
_STEPS, _MORE_STEPS, _ENOUGH_EPOCHS, _MOST_EPOCHS = 12_000, 18_000, 28, 100
_BATCH, _LARGE_BATCH, _LARGE_TABLE = 64, 256, 100_000
# Learning rates that do well with the default network, at batches of 64.
_RATES = {"adam": 0.01, "adamw": 0.01, "adadelta": 1.0, "adagrad": 0.05, "rmsprop": 3e-3}
_OTHER_RATE = 0.01
# Most scores in one training; each is an exact pass, and few passes must not cost more than steps.
_SCORES, _SCORES_PER_EPOCH = 20, 4
# Rows that partial_fit keeps for its exact passes, and the largest table that becomes tensors.
_KEPT_ROWS = 8192
_RESIDENT_NUMBERS = 2**24
_SMALL_TABLE = 1000
# Fewer rows than this are too few to hold some out; above _LARGE_TABLE a copy would cost too much.
_FEWEST_SPLIT = 200
# What training may lose per row, in nats, before it counts as having diverged.
_LOSS = 0.05
# The noise variance may not exceed the target's by more than this.
_LARGEST_NOISE = 1e3


@dataclass(frozen=True)
class _Settings:
    """What "auto" came to."""

    batch_size: int
    max_epochs: int
    learning_rate: float
    dtype: torch.dtype

    def steps_per_epoch(self, n: int) -> int:
        return max(1, n // self.batch_size)


class DeepKernelRegressorBase(MinibatchGPRegressorBase):
    """A feature map, a gradient rule, and a final exact pass; subclasses say which rule."""

    _parameter_constraints: dict[str, list[Any]] = shared_parameters(
        "kernel", "n_targets", "random_state", "normalize_y", "learning_rate", "n_iter_no_change",
        "batch_size", "memory_budget", "device", "dtype", "callbacks", "max_seconds", "verbose",
    ) | {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "network": [callable, None],
        "n_features": [Interval(Integral, 2, None, closed="left")],
        "min_noise": [Interval(Real, 0, 10, closed="neither")],
        "max_epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "optimizer": [StrOptions(set(BATCH_OPTIMIZERS)), callable, None],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
    }  # fmt: skip

    @abstractmethod
    def _rule(self) -> BatchGradient:
        """How a batch becomes a gradient."""

    def _batches(
        self, source: RowSource, size: int, generator: torch.Generator
    ) -> Callable[[], Iterator[torch.Tensor]]:
        """Makes iterators over row numbers."""
        return lambda: source.shuffled(size, generator)

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any):
        """Train the features, then take the weights' exact posterior in one pass over the rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; a large `np.memmap` of floats is read a batch at a time and not copied.
        y : array-like of shape (n,) or (n, t)
            Targets, which share the features.

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
        X, Y = self._read_rows(X, y)
        random_state, generator = seeded(self.random_state)
        settings = self._settings(len(X))
        source = self._new_source(X, Y, settings)
        features = self._make_features(source, generator)
        train, held_out = self._split(source, random_state)
        monitor = make_monitor(self)
        stepper = self._stepper(
            features,
            features.initial(generator, settings.dtype),
            self._first_noise,
            train,
            settings,
            generator,
            held_out=held_out,
            annealed=monitor,
        )
        steps = settings.max_epochs * settings.steps_per_epoch(len(train))
        steps = 0 if self.optimizer is None else steps
        result = self._run(stepper, settings, steps, monitor, keep_best=True)
        if not math.isfinite(result.score):
            raise ValueError(
                "No parameters had a finite likelihood, not even the first ones. Check the columns "
                "and the target for extreme values, or use dtype='float64'."
            )
        stepper.scored_rows, stepper.n = source, len(source)
        kernel = self._compiled(features.network.n_features)
        self._keep(features, kernel, stepper, settings, result, monitor, source)
        kept = np.arange(len(X))
        if len(X) > _KEPT_ROWS:
            kept = np.unique(random_state.randint(len(X), size=_KEPT_ROWS))
        self._kept = (np.array(X[kept]), np.array(Y[kept]))
        self.n_samples_seen_ = len(X)
        self._warn(result, settings)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any):
        """Train on one more chunk of a stream: a pass of random batches over it.

        The first chunk sets the units, so it should look like the others. The posterior is that of
        a uniform sample of at most 8,192 of all rows so far, taken for all of them; after `fit`, of
        a sample of its rows. Every pass starts its optimiser anew, at a constant rate.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows of the chunk.
        y : array-like of shape (n,) or (n, t)
            Their targets.

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
        first = not hasattr(self, "_tensors")
        X, Y = self._read_rows(X, y, reset=first)
        if not first and Y.shape[1] != self._n_outputs():
            raise ValueError(
                f"y has {Y.shape[1]} targets, but earlier chunks had {self._n_outputs()}."
            )
        seen = 0 if first else self.n_samples_seen_
        random_state, generator = self._stream_seed(seen)
        settings = self._settings(len(X))
        if first:
            source = self._new_source(X, Y, settings)
            features = self._make_features(source, generator)
            kernel = self._compiled(features.network.n_features)
            tensors, noise = features.initial(generator, settings.dtype), self._first_noise
            kept = _sampled(None, X, Y, 0, random_state)
        else:
            device = training_device(self.device)
            source = _resident(RowSource(X, Y, self._scaling, settings.dtype, device))
            features = to_torch(self._features)
            kernel = compile_kernel(self.kernel_, features.network.n_features)
            tensors = network_from_numpy(self._tensors, settings.dtype)
            tensors[features.theta_at] = tensors[features.theta_at].double()
            noise = self.noise_variance_
            kept = _sampled(self._kept, X, Y, seen, random_state)
        stepper = self._stepper(
            features,
            tensors,
            noise,
            source,
            settings,
            generator,
            scored_rows=replace(source, X=kept[0], Y=kept[1], _resident=None),
            n=seen + len(X),
        )
        steps = 0 if self.optimizer is None else settings.steps_per_epoch(len(X))
        monitor = make_monitor(self)
        result = self._run(stepper, settings, steps, monitor, keep_best=False)
        if not math.isfinite(result.score):
            raise ValueError("This chunk leaves no parameters with a finite likelihood.")
        self._keep(features, kernel, stepper, settings, result, monitor, source)
        self._kept, self.n_samples_seen_ = kept, seen + len(X)
        self._warn(result, settings)
        return self

    def _stream_seed(self, seen: int) -> tuple[np.random.RandomState, torch.Generator]:
        """The same stream gives the same model, and every chunk its own randomness."""
        if not seen:
            random_state, generator = seeded(self.random_state)
            self._stream = int(random_state.randint(2**31 - 1))
            return random_state, generator
        return seeded((getattr(self, "_stream", 0) + seen) % (2**31 - 1))

    # ------------------------------------------------------------------ parts of a fit

    @property
    def _first_noise(self) -> float:
        """A tenth of the target's variance, or what min_noise allows."""
        return max(0.1, self.min_noise**2)

    def _settings(self, n: int) -> _Settings:
        size = self.batch_size
        if size == "auto":
            size = min(n, _BATCH if n <= _LARGE_TABLE else _LARGE_BATCH)
        elif size > n:
            warnings.warn(
                f"batch_size={size} exceeds the {n} training rows, which make one batch.",
                stacklevel=3,
            )
            size = n
        epochs = self.max_epochs
        if epochs == "auto":
            # Large tables need more steps, but not in proportion: protein gains, kin40k hardly.
            few, many = (math.ceil(steps * _BATCH / max(n, 1)) for steps in (_STEPS, _MORE_STEPS))
            epochs = min(_MOST_EPOCHS, max(few, min(many, _ENOUGH_EPOCHS)))
        rate = self.learning_rate
        if rate == "auto":
            named = self.optimizer if isinstance(self.optimizer, str) else ""
            rate = _RATES.get(named, _OTHER_RATE)
            # The noise of small batches averages out over more and smaller steps.
            rate *= 1.0 if named == "adadelta" else min(1.0, (size / _BATCH) ** 0.5)
        dtype = resolve_dtype(self.dtype, n, threshold=_SMALL_TABLE)
        return _Settings(int(size), int(epochs), float(rate), dtype)

    def _new_source(self, X: np.ndarray, Y: np.ndarray, settings: _Settings) -> RowSource:
        """Rows in units of their own standard deviations; without normalize_y the mean stays 0."""
        y_mean, y_scale = column_moments(Y)
        if not self.normalize_y:
            y_mean = np.zeros(Y.shape[1])
            y_scale = np.sqrt(np.square(Y).mean(0))
            y_scale = np.where(y_scale > 0, y_scale, 1.0)
        scaling = Scaling(*column_moments(X), y_mean, y_scale)
        return _resident(RowSource(X, Y, scaling, settings.dtype, training_device(self.device)))

    def _make_features(self, source: RowSource, generator: torch.Generator) -> DeepFeatures:
        extractor = self.hidden_layer_sizes if self.network is None else self.network
        network = make_network(source.X.shape[1], extractor, self.activation)
        kernel = self._compiled(network.n_features)
        try:
            features = make_deep_features(network, kernel, self.n_features, generator)
        except NoSpectralDensity as error:
            raise NoSpectralDensity(
                f"{error.cause}, so it has no finite features: use sums or "
                "products of RBF, Matern, RationalQuadratic, DotProduct and constants."
            ) from None
        m, q = features.n_features, network.n_features
        check_memory(
            8 * (10 * m * m + 3 * 4096 * (m + q)),
            f"A feature map of {m} columns (ten {m} x {m} matrices)",
            f"use a smaller n_features than {self.n_features}, or a narrower last layer than {q}",
            budget_of(self.memory_budget),
            device=source.device,
        )
        with torch.no_grad():
            rows = source.rows(slice(0, 256))[0].cpu()
            check_features(features.embed(features.initial(generator, rows.dtype), rows))
        return features

    def _compiled(self, q: int) -> TorchKernel:
        kernel = self.kernel
        if kernel is None:
            kernel = ConstantKernel(1.0, (1e-6, 1e6)) * DotProduct(1.0, (1e-3, 1e3))
        compiled = compile_kernel(kernel, q)
        if bool((compiled.noise(compiled.theta0, torch.zeros(1, q)) > 0).any()):
            raise ValueError(
                "kernel has a WhiteKernel, but the noise is a parameter of its own here "
                "(noise_variance_, bounded below by min_noise): leave the WhiteKernel out."
            )
        return compiled

    def _split(self, source: RowSource, random_state: np.random.RandomState):
        """Training and held-out rows; no copies unless rows are held out."""
        wanted = self.early_stopping
        if isinstance(wanted, str):
            wanted = _FEWEST_SPLIT <= len(source) <= _LARGE_TABLE
        if not wanted:
            return source, None
        count = max(1, round(self.validation_fraction * len(source)))
        if count >= len(source):
            raise ValueError(
                f"validation_fraction={self.validation_fraction} leaves no training row of "
                f"{len(source)}: use early_stopping=False."
            )
        order = random_state.permutation(len(source))
        train = _resident(source.subset(np.sort(order[count:])))
        return train, _resident(source.subset(np.sort(order[:count])))

    def _stepper(
        self,
        features: DeepFeatures,
        tensors: list[torch.Tensor],
        noise: float,
        source: RowSource,
        settings: _Settings,
        generator: torch.Generator,
        annealed: Monitor | None = None,
        **rows: Any,
    ) -> WeightSpaceStepper:
        steps = settings.max_epochs * settings.steps_per_epoch(len(source))
        made = self.optimizer
        if isinstance(made, str):
            made = BATCH_OPTIMIZERS[made]
        return WeightSpaceStepper(
            features,
            tensors,
            noise,
            (self.min_noise**2, _LARGEST_NOISE),
            source,
            self._rule(),
            made,
            settings.learning_rate,
            self._batches(source, settings.batch_size, generator),
            settings.batch_size,
            None if annealed is None else cosine(steps, annealed.spent),
            **rows,
        )

    def _run(
        self,
        stepper: WeightSpaceStepper,
        settings: _Settings,
        steps: int,
        monitor: Monitor,
        keep_best: bool,
    ):
        scores = min(_SCORES, _SCORES_PER_EPOCH * settings.max_epochs)
        every = max(1, math.ceil(steps / scores))
        monitor.begin("batches", math.ceil(steps / every) + 1)
        try:
            result = train_steps(
                stepper,
                max_steps=steps,
                check_every=every,
                monitor=monitor,
                n_iter_no_change=self.n_iter_no_change if keep_best else None,
                tol=self.tol,
                epochs_per_step=settings.batch_size / len(stepper.source),
                keep_best=keep_best,
            )
        finally:
            monitor.close()
        scores = [step.objective for step in monitor.steps]
        values = stepper.likelihoods
        if scores and result.score == scores[0] and values[-1] < values[0] - _LOSS:
            # Finite, since an exact pass repairs the weights, and yet worse than no training. Rows
            # held out may prefer the start for another reason: a network that overfits.
            result = replace(result, stop_reason="diverged")
        return result

    def _keep(self, features, kernel, stepper, settings, result, monitor, source) -> None:
        """The last exact pass, and everything that prediction needs as arrays."""
        evaluation, _ = stepper.finish()
        theta = stepper.tensors[features.theta_at].detach().cpu()
        weights = evaluation.posterior(stepper.noise)
        self.kernel_ = kernel.to_sklearn(theta)
        self.noise_variance_ = stepper.noise
        self.coef_ = weights.mean.cpu().numpy()
        self.coef_cholesky_ = weights.factor.cpu().numpy()
        self.log_marginal_likelihood_value_ = evaluation.value
        self._features, self._tensors = to_numpy(features), network_to_numpy(stepper.tensors)
        self._keep_scaling(source.scaling)
        epochs = result.n_steps / settings.steps_per_epoch(len(stepper.source))
        self.n_iter_ = math.ceil(epochs)
        self.history_ = monitor.history()
        self.device_, self.dtype_ = str(source.device), str(settings.dtype).removeprefix("torch.")
        self.solver_info_ = {
            "status": "converged" if result.stop_reason in ("max_iter", "converged") else "stopped",
            "epochs": epochs,
            "steps": result.n_steps,
            "jitter": evaluation.jitter,
            "stop_reason": result.stop_reason,
            "plan": f"{features.n_features} features, batches of {settings.batch_size}, learning "
            f"rate {settings.learning_rate:g}, {self.dtype_} on {source.device}",
        }
        self._remember(None)

    def _warn(self, result, settings: _Settings) -> None:
        texts = unfinished(result.stop_reason, self, f"{result.n_steps} steps")
        if texts and result.stop_reason == "diverged":
            texts = [
                f"Training diverged after {result.n_steps} steps at learning_rate="
                f"{settings.learning_rate:g}: try a tenth of it. The best state so far is kept."
            ]
        warn_once(texts)

    # ------------------------------------------------------------------ after training

    def _build_posterior(self) -> FeaturePosterior:
        features = to_torch(self._features)
        tensors = network_from_numpy(self._tensors)
        space = DeepFeatureSpace(features, tensors, self.noise_variance_, torch.device("cpu"))
        weights = FeatureWeights(torch.tensor(self.coef_cholesky_), torch.tensor(self.coef_))
        return FeaturePosterior(space, weights)

    def features(self, X: Any) -> np.ndarray:
        """What the kernel sees of rows: the network's output divided by sqrt(q).

        Times 3 where the kernel is stationary, so that its length scales can begin at 1.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.

        Returns
        -------
        Z : ndarray of shape (m, q)
            Standardised rows themselves where there is no network.
        """
        check_is_fitted(self, "n_iter_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        space = self._posterior().operator
        with torch.no_grad():
            parts = [space.features.embed(space.tensors, rows) for _, rows in self._chunks(X)]
        return torch.cat(parts).numpy()

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> float:
        """The exact log marginal likelihood of the training rows, in normalised units.

        Parameters
        ----------
        theta : None
            Only the trained parameters: no training rows are kept.
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
                "Only the value at the trained parameters is known: the model keeps no training "
                "rows. Call log_marginal_likelihood() without arguments."
            )
        return self.log_marginal_likelihood_value_


def _resident(source: RowSource) -> RowSource:
    """Small tables become tensors; memory maps are left where they are."""
    return source.resident() if source.X.size + source.Y.size <= _RESIDENT_NUMBERS else source


def _sampled(
    kept: tuple[np.ndarray, np.ndarray] | None,
    X: np.ndarray,
    Y: np.ndarray,
    seen: int,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """A uniform sample of all rows so far (reservoir sampling, Vitter 1985, algorithm R)."""
    if kept is None:
        kept = X[:0], Y[:0]
    kept_X, kept_Y = np.array(kept[0]), np.array(kept[1])
    room = max(0, _KEPT_ROWS - len(kept_X)) if seen <= len(kept_X) else 0
    kept_X = np.concatenate([kept_X, X[:room]])
    kept_Y = np.concatenate([kept_Y, Y[:room]])
    later = np.arange(min(room, len(X)), len(X))
    places = random_state.randint(0, seen + later + 1) if len(later) else later
    for i, place in zip(later[places < len(kept_X)], places[places < len(kept_X)], strict=True):
        kept_X[place], kept_Y[place] = X[i], Y[i]
    return kept_X, kept_Y
