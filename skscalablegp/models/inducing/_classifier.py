"""Sparse variational classification.

More than half of this file documents the parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.utils import check_random_state
from torch import nn

from ..._compat import fit_context, sobol
from ...core import FitRun, GPClassifierBase, label_prior
from ...core.data import RowSource
from ...core.likelihoods import (
    Bernoulli,
    Likelihood,
    Softmax,
    best_power,
    class_shares,
    losses_of_powers,
    resolve_likelihood,
    towards_shares,
)
from ...core.posteriors import Affine
from ...kernels import compile_kernel, default_kernel
from ...linalg.gradients import Rows
from ._base import SparseMixin, Start
from ._plan import MOST_POINTS
from ._stepper import SparseFit, SparseModel, drawn_rows
from ._training import left_out

# Draws of the latent functions in a prediction; a power of two, for the Sobol sequence.
_DRAWS = 256
# Draws times rows times classes that a prediction holds in memory at most.
_DRAWN = 2**24
# Variance of the latent functions at the start of training.
_LATENT_VARIANCE = 30.0
# Bounds of the factors of length scales at the start, and the largest number of columns that have
# factors of their own.
_FACTORS = (1e-3, 1e5)
_COLUMNS_WITH_FACTORS = 200
# Each class has a covariance of its own, so that there are fewer points for many classes: at most
# this number of points times classes, and at least so many points. On a drawn table of 50 classes,
# 64 and 110 points have log losses of 1.772 and 1.779.
_POINT_CLASSES, _LEAST_POINTS = 2560, 64
# Rows that determine the power of the probabilities.
_POWER_ROWS = 2000


class SVGPClassifier(SparseMixin, GPClassifierBase):
    """Gaussian-process classification through inducing points, trained on random batches.

    For two classes there is one latent function with a logit or probit link. For more classes there
    is one latent function per class, with a common kernel, common inducing points and a softmax.
    Probabilities are averaged over the uncertainty of the latent functions. See
    :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. It is the kernel of the latent functions, in the units of X, and training starts
        at its values. None means ``ConstantKernel() * Matern(nu=1.5)`` with one length scale per
        column. These start at the columns' standard deviations times a common factor, which a
        regression on the labels of 500 rows determines, and have a log-normal prior unless
        `priors` are given.
    likelihood : {"auto", "bernoulli", "softmax"} or Likelihood, default="auto"
        Distribution of the target given the latent function. "auto" is ``Bernoulli(link="logit")``
        for two classes and ``Softmax()`` for more. Other objects, such as
        ``Bernoulli(link="probit")``, are in `skscalablegp.likelihoods`, and you can write your own.
    n_inducing : int or "auto", default="auto"
        Number of inducing points. "auto" is 512 for two classes, 256 for up to ten, and fewer
        for more, at least 64; or all rows if there are fewer.
    feature_extractor : int, sequence of int, callable, torch.nn.Module or None, default=None
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. It is trained together with the kernel,
        which is a kernel of its outputs. A given module is copied first.
    inducing : {"kmeans++", "conditional_variance", "random"} or array-like of shape (m, d), \
            default="kmeans++"
        Method that chooses the inducing points, or an array of points. The named methods choose
        among the training rows, by distances in the kernel's feature space.
    priors : dict of str to Prior or None, default=None
        Prior distributions of hyperparameters, by name; training adds their log density to its
        objective. The values are objects from `skscalablegp.priors`. The keys are names from
        ``kernel.hyperparameters``; those of the default kernel are ``"k1__constant_value"`` and
        ``"k2__length_scale"``.
    optimizer : "adam" or None, default="adam"
        Method that trains the hyperparameters; None keeps them at their initial values. It also
        trains the inducing points and the network.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is the number of steps in 8 passes over the rows,
        but at least 80 (30 for up to 200 rows) and at most 400. In `partial_fit` the limit counts
        passes over the new rows, and "auto" is 30.
    batch_size : int, default=1024
        Number of rows in a training step. Smaller tables have steps of all rows.
    optimize_inducing : bool, default=True
        Whether training moves the inducing points. With ``optimizer="adam"`` they are trained, in
        units of the length scales.
    calibrate : bool, default=True
        Whether to calibrate the predictive distribution on the training rows. The probabilities are
        raised to the power with the lowest leave-one-out log loss on up to 2,000 training rows,
        since those of the variational posterior are underconfident.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        batches, the inducing points, the draws for predictions and the initial weights of networks.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. The last state counts
        as the best, because the bound on a batch is too noisy for a comparison of states.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64. float32 is somewhat
        faster, and loses what little noise resolves. Factors of m x m matrices and predictions are
        always float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    learning_rate : float, default=0.05
        Step size of the optimiser, for optimisers that have one. It applies to the logarithms of
        the hyperparameters. The rate rises during the first ten steps and then falls along half a
        cosine; networks learn at a tenth of it.
    variational_optimizer : {"natural", "adam"}, default="natural"
        Optimiser of the variational distribution. The distribution is that of the whitened function
        values at the inducing points. "natural" takes natural-gradient steps, which have a closed
        form.
    variational_learning_rate : float or "auto", default="auto"
        Step size of the variational optimiser. A natural-gradient step is a weighted mean in which
        a batch has this weight, at most 1; "auto" is then 0.1, or 0.3 if a step sees all rows. For
        Adam, "auto" is the learning rate of the hyperparameters. It has no effect if the noise is
        Gaussian and a step sees all rows, since the optimal distribution is then computed directly.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"}, default="relu"
        Activation function after each layer of a network that is given by its layer sizes.

    Attributes
    ----------
    classes_ : ndarray of shape (c,)
        The labels, sorted.
    kernel_ : kernel instance
        The trained kernel.
    likelihood_ : Likelihood
        The likelihood that was used.
    inducing_points_ : ndarray of shape (m, d)
        The inducing points, in the units of X, or of the network's outputs if there is a network.
    variational_mean_ : ndarray of shape (m, q)
        Means of the whitened function values at the inducing points. There is one latent function
        for two classes, and one per class for more.
    variational_cov_ : ndarray of shape (q, m, m)
        Covariances of these values.
    latent_constant_ : ndarray of shape (q,)
        Constants of the latent functions. They start at the classes' log odds and are trained.
    class_prior_ : ndarray of shape (c,)
        Shares of the classes among the rows of all calls, with one more row divided among them.
    draws_ : ndarray of shape (256, c) or None
        Standard normal points, a scrambled Sobol sequence drawn in the fit, over which predictions
        average the softmax. None for two classes, for which a quadrature is used.
    probability_power_ : float
        The power of the ratio of probabilities to `class_prior_`, by which this is multiplied; 1
        without `calibrate`. It has the lowest leave-one-out log loss of the rows of all calls, and
        is shrunk towards 0, the shares of the classes, by 5 / g, where g is the gain over these in
        nats; it is 0 if there is no such gain.
    lower_bound_ : float
        Lower bound of the log marginal likelihood of the rows of `fit`, summed over rows.
    n_samples_seen_ : int
        The number of rows in `fit` and in all calls of `partial_fit`.
    n_iter_ : int
        The number of training steps in the last call, plus the evaluations of the likelihood that
        determined their start.
    history_ : dict of lists
        stage, iteration, theta, objective, objective_name, residual, probe_residual, epochs and
        seconds of each score.
    fit_report_ : FitReport
        How the last call ended, what "auto" chose and why, parameters without effect, seconds by
        stage, passes over the rows, and jitter. `print` shows it as text.
    device_, dtype_ : str
        The device and the precision of training.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        The names of the columns, if X has any.

    See Also
    --------
    SVGPRegressor : The same for regression.

    References
    ----------
    J. Hensman, A. Matthews, Z. Ghahramani (2015), Scalable variational Gaussian process
    classification.
    M. E. Khan, W. Lin (2017), Conjugate-computation variational inference.
    A. Vehtari et al. (2016), Bayesian leave-one-out cross-validation approximations for Gaussian
    latent variable models.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skscalablegp import SVGPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gp = SVGPClassifier(n_inducing=30, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.95)
    True
    """

    # Without the regression on labels, training stays near length scales that are too short.
    _fewest_start = 20
    # Sums over the rows of all calls; files of earlier versions have none.
    _power_losses: float | np.ndarray = 0.0

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        likelihood="auto",
        n_inducing="auto",
        feature_extractor=None,
        inducing="kmeans++",
        priors=None,
        optimizer="adam",
        max_iter="auto",
        batch_size=1024,
        optimize_inducing=True,
        calibrate=True,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        learning_rate=0.05,
        variational_optimizer="natural",
        variational_learning_rate="auto",
        activation="relu",
    ):
        self._set(locals())

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> SVGPClassifier:
        """Train hyperparameters, inducing points and the variational distribution.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows. A floating-point `np.memmap` of more than 256 MB is read in batches and
            not copied.
        y : array-like of shape (n,)
            Labels of at least two classes.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, and a row of weight zero
            is left out. Weights need not be whole numbers. Equal rows are merged before the fit, so
            that weights and repeated rows give the same model. A memory map is searched for equal
            rows, and then copied, only with weights.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For invalid input or settings.
        MemoryError
            If the work would not fit into memory; raised before it starts.
        """
        return self._fit(X, y, None, sample_weight)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None) -> SVGPClassifier:
        """Update the posterior with further rows; the first call is `fit`.

        The current posterior is the prior for the new rows. Hyperparameters and inducing points
        stay those of the first call, whose rows should therefore cover the whole range. The shares
        of the classes and the calibration follow the rows of all calls: where few first rows leave
        the shares alone as probabilities, later rows bring in the latent functions. Rows that are
        passed twice count twice.

        Parameters
        ----------
        X : array-like of shape (n, d)
            New rows.
        y : array-like of shape (n,)
            Labels.
        classes : array-like of shape (c,), optional
            All labels that will occur, for the first call. By default, those of y.
        sample_weight : float or array-like of shape (n,), optional
            As for `fit`.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            For rows or labels unlike those of the first call.
        """
        if not hasattr(self, "n_iter_"):
            return self._fit(X, y, classes, sample_weight)
        with FitRun(self) as run:
            given, there = self._given(X, y, sample_weight, reset=False), run.machine.device
            source = given.source(self._scaling, self.likelihood_, there, torch.float64)
            c, n_old = len(self.classes_), self.n_samples_seen_
            model, fit = self._absorb(source, c, run)
            self.class_prior_ = class_shares(
                given.Y[:, 0], c, given.weight, (self.class_prior_, n_old)
            )
            if self.calibrate and not run.stopped:
                with run.stage("calibration", optional=True):
                    # The hyperparameters were trained with the first rows only.
                    losses = self._losses_of_powers(model, source, fit, n_theta=0)
                    self._power_losses = self._power_losses + losses
                    self.probability_power_ = best_power(self._power_losses)
        return self

    def _fit(self, X: Any, y: Any, classes: Any, sample_weight: Any = None) -> SVGPClassifier:
        with FitRun(self) as run:
            given, c = self._given(X, y, sample_weight, classes), len(self.classes_)
            self.class_prior_ = class_shares(given.Y[:, 0], c, given.weight)
            likelihood = self._checked_likelihood(c, run)
            source = given.source(given.scaling(run, likelihood), likelihood, run.machine.device)
            training = self._prepare(source, likelihood, c, run)
            run.begin(given.X, given.Y, n_rows=source.n_rows)
            self.draws_ = None if likelihood.n_latent(c) == 1 else self._draw(c)
            self.probability_power_, self._power_losses = 1.0, 0.0
            fit = self._train(training, run)
            if self.calibrate and not run.stopped:
                with run.stage("calibration", optional=True):
                    n_theta = 0 if self.optimizer is None else len(fit.theta)
                    parts = training.model, training.source, fit, n_theta
                    self._power_losses = self._losses_of_powers(*parts)
                    self.probability_power_ = best_power(self._power_losses)
        return self

    def _most_points(self, n_outputs: int) -> int:
        if n_outputs == 2:
            return MOST_POINTS
        return int(np.clip(_POINT_CLASSES // n_outputs, _LEAST_POINTS, MOST_POINTS // 2))

    def _losses_of_powers(
        self, model: SparseModel, source: RowSource, fit: SparseFit, n_theta: int
    ) -> np.ndarray:
        """Leave-one-out log losses with the powers of the probabilities that are compared.

        These rows have trained `n_theta` hyperparameters.
        """
        generator = torch.Generator().manual_seed(0)
        chosen, drawn = drawn_rows(source, _POWER_ROWS, generator)
        some = source.subset(chosen)
        mean, variance = left_out(model, some, fit, generator)
        mean, variance = mean.cpu(), variance.cpu()
        codes = some.take(slice(None)).Y.long().cpu()
        draws = None if self.draws_ is None else torch.tensor(self.draws_)
        p = self.likelihood_.probabilities(mean, variance, model.n_outputs, draws)
        # Hyperparameters were trained with all rows, of which these are a part.
        n_trained = n_theta * len(chosen) / len(source)
        shares = torch.tensor(self.class_prior_)
        return losses_of_powers(p, codes[:, 0], shares, torch.as_tensor(drawn), n_trained)

    def _draw(self, c: int) -> np.ndarray:
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        return ndtri(np.clip(sobol(c, _DRAWS, int(seed)), 1e-12, 1 - 1e-12))

    def _checked_likelihood(self, c: int, run: FitRun) -> Likelihood:
        if isinstance(self.likelihood, str) and self.likelihood == "auto":
            return run.chose("likelihood", Bernoulli() if c == 2 else Softmax(), f"{c} classes")
        return resolve_likelihood(self.likelihood, c, classes=True)

    def _default_kernel(self, width, spread, unit, likelihood):
        """Columns with little variation, such as rare words, get the median length scale."""
        spread = np.broadcast_to(spread, (width,))
        return default_kernel(width, np.maximum(spread, np.median(spread)), _LATENT_VARIANCE).k1

    def _priors(self, kernel, shape, noisy, run):
        """Those of the user; by default, length scales at which functions generalise.

        A regression on labels without signal has the same likelihood at very short length scales
        as at long ones with noise.
        """
        run.priors = self.priors
        if run.priors is None and self.kernel is None:
            scale = np.atleast_1d(kernel.k2.length_scale)
            run.priors = {"k2__length_scale": label_prior(math.sqrt(shape[1]) * scale)}
        return run.priors

    def _start_problems(
        self, model: SparseModel, rows: Rows, constant: torch.Tensor | None
    ) -> list[Start]:
        """Regressions on the labels, whose length scales are factors of the kernel's.

        One has a single factor, the other one for each column.
        """
        kernel = model.kernel
        labels = torch.nn.functional.one_hot(rows.Y[:, 0].long(), model.n_outputs).double()
        if model.n_outputs == 2:
            labels = labels[:, 1:]  # the other column is its negative
        labels = labels - labels.mean(0)
        labels = labels / labels.square().mean().sqrt().clamp_min(1e-12)
        unit = torch.as_tensor(np.atleast_1d(kernel.kernel.k2.length_scale)).to(rows.X)
        rows = replace(rows, X=rows.X / unit, Y=labels)

        def to_theta(theta: torch.Tensor) -> torch.Tensor:
            ours, bounds = kernel.theta0, kernel.bounds
            ours[1:] += theta[1:-1]
            return ours.clamp(bounds[:, 0], bounds[:, 1])

        d = kernel.n_features
        factors = [1.0]
        if 1 < d <= _COLUMNS_WITH_FACTORS:
            factors.append(np.ones(d))
        regressions = [
            ConstantKernel() * Matern(factor, _FACTORS, nu=1.5) + WhiteKernel(1.0, (1e-2, 1e2))
            for factor in factors
        ]
        priors = {"k1__k2__length_scale": label_prior(math.sqrt(d))}
        return [(compile_kernel(one, d, priors=priors), rows, to_theta) for one in regressions]

    def _as_module(self) -> nn.Module:
        return _ClassModule(self)

    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        posterior, c = self._posterior(), len(self.classes_)
        room = max(1, _DRAWN // (_DRAWS * c + len(self.inducing_points_)))
        out, shares = np.empty((len(X), c)), torch.tensor(self.class_prior_)
        draws = None if self.draws_ is None else torch.tensor(self.draws_, device=posterior.device)
        for start in range(0, len(X), room):
            part = slice(start, start + room)
            rows = self._scaling.inputs(X[part], posterior.dtype, posterior.device)
            mean, variance = posterior.latent_moments(rows)
            variance = variance + posterior.noise(rows)[:, None]
            p = self.likelihood_.probabilities(mean, variance, c, draws)
            out[part] = towards_shares(p, shares, self.probability_power_).cpu().numpy()
        return out


class _ClassModule(nn.Module):
    """The probabilities of an `SVGPClassifier`: rows (m, d) to (m, c)."""

    draws: torch.Tensor | None
    shares: torch.Tensor

    def __init__(self, of: SVGPClassifier):
        super().__init__()
        self.inputs = Affine(of._scaling.x_mean, of._scaling.x_scale)
        self.latent, self._likelihood = of._posterior().module(), of.likelihood_
        self._power, self._c = float(of.probability_power_), len(of.classes_)
        self.register_buffer("shares", torch.tensor(of.class_prior_))
        self.register_buffer("draws", None if of.draws_ is None else torch.tensor(of.draws_))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        mean, variance, noise = self.latent.latent_moments(self.inputs(X))
        p = self._likelihood.probabilities(mean, (variance + noise).mT, self._c, self.draws)
        return towards_shares(p, self.shares, self._power)
