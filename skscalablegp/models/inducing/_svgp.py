"""Sparse variational regression.

More than half of this file documents the parameters.
"""

from __future__ import annotations

import math

import torch

from ..._compat import fit_context
from ..._validation import check_duplicates
from ...core import (
    FitRun,
    GivenRows,
    MinibatchGPRegressorBase,
    own_rows,
)
from ...core.data import RowSource
from ...core.likelihoods import Likelihood, resolve_likelihood, shares_covariance
from ...core.posteriors import Posterior, observed
from ._base import SparseMixin
from ._collapsed import check_noise


class SVGPRegressor(SparseMixin, MinibatchGPRegressorBase):
    """Gaussian processes by inducing points in batches; exact up to 2,000 rows (``small_table``).

    The posterior is summarised by the function values at m inducing points. Their distribution, the
    positions of the points and the hyperparameters maximise a lower bound of the log marginal
    likelihood (Hensman et al. 2013). A step costs O(b m^2 + m^3) for a batch of b rows, independent
    of the number of rows. A predicted mean costs O(m), and a standard deviation O(m^2). With
    Gaussian noise the distribution follows natural gradients in closed form, and its optimum for
    all rows is computed at the end. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. It is in the units of X, and training starts at its values. None means
        ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length scale per column, and
        training starts at the maximum of the exact likelihood of 500 rows.
    likelihood : {"gaussian", "student_t", "laplace"} or Likelihood, default="gaussian"
        Distribution of the target given the latent function. ``StudentT(df=4)`` is robust to
        outliers; its squared scale is the kernel's white noise. Likelihood objects are in
        `skscalablegp.likelihoods`, and you can write your own.
    n_inducing : int or "auto", default="auto"
        Number of inducing points. "auto" is 512, or all rows if there are fewer. With Gaussian
        noise it is all rows up to 2,000; training then maximises the exact likelihood, which is
        faster.
    feature_extractor : int, sequence of int, callable, torch.nn.Module or None, default=None
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. It is trained together with the kernel,
        which is a kernel of its outputs. A given module is copied first.
    inducing : {"kmeans++", "conditional_variance", "random"} or array-like of shape (m, d), \
            default="kmeans++"
        Method that chooses the inducing points, or an array of points. The named methods choose
        among the training rows, by distances in the kernel's feature space.
    alpha : float or array-like of shape (n,), default=1e-10
        Known noise variance, added to the diagonal of the kernel matrix, in squared units of y, or
        of the normalised target if normalize_y=True. The default is relative to the variance of y.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    priors : dict of str to Prior, "auto" or None, default="auto"
        Prior distributions of hyperparameters, by name; training adds their log density to its
        objective. The values are objects from `skscalablegp.priors`. The keys are names from
        ``kernel.hyperparameters``; those of the default kernel are ``"k1__k1__constant_value"``,
        ``"k1__k2__length_scale"`` and ``"k2__noise_level"``. Hyperparameters are in the units of
        the kernel, in which variances are those of the normalised target. "auto" puts a prior on
        the noise level of the default kernel if there are at least three columns, at most 120 rows,
        and at most 15 rows per column. None means no priors.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        2,000 rows if all of them are inducing points and the noise is normal. "method" never does.
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
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        batches, the inducing points and the initial weights of networks.
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
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
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
    kernel_ : kernel instance
        The trained kernel.
    likelihood_ : Likelihood
        The likelihood that was used.
    inducing_points_ : ndarray of shape (m, d)
        The inducing points, in the units of X, or of the network's outputs if there is a network.
    variational_mean_ : ndarray of shape (m, t)
        Mean of the whitened function values at the inducing points.
    variational_cov_ : ndarray of shape (1, m, m)
        Covariance of these values, which the targets share.
    latent_constant_ : ndarray of shape (t,)
        Constants of the latent functions. They are trained if there is no additive noise and no
        kernel is given, and are zero otherwise.
    lower_bound_ : float
        Lower bound of the log marginal likelihood of the rows of `fit`, in units of the normalised
        target, summed over rows and targets.
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
    SGPRRegressor : The same model with the variational distribution integrated out.
    SVGPClassifier : The same for classes.

    Notes
    -----
    If all rows are inducing points, the bound equals the exact log marginal likelihood. For
    tables of up to 2,000 rows, training then maximises this likelihood.

    References
    ----------
    J. Hensman, N. Fusi, N. Lawrence (2013), Gaussian processes for big data.
    H. Salimbeni, S. Eleftheriadis, J. Hensman (2018), Natural gradients in practice.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import SVGPRegressor
    >>> X, y = make_friedman2(n_samples=400, noise=1.0, random_state=0)
    >>> gp = SVGPRegressor(n_inducing=60, normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    _robust_likelihood = "student_t"
    _sums_rows = True

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        n_inducing="auto",
        feature_extractor=None,
        inducing="kmeans++",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="adam",
        max_iter="auto",
        batch_size=1024,
        optimize_inducing=True,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        n_targets=None,
        learning_rate=0.05,
        variational_optimizer="natural",
        variational_learning_rate="auto",
        activation="relu",
    ):
        self._set(locals())

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None, sample_weight=None) -> SVGPRegressor:
        """Train hyperparameters, inducing points and the variational distribution.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows. A floating-point `np.memmap` of more than 256 MB is read in batches and
            not copied.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. Split by
            cross-validation when metadata routing is on.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            with equal targets are merged before the fit, so that weights and repeated rows give the
            same model. A memory map is searched for equal rows, and then copied, only with weights.

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
        with FitRun(self) as run:
            if self.feature_extractor is not None and own_rows() is not None:
                raise ValueError(
                    "feature_extractor needs all rows in one process: use "
                    "distribute(rows='replicated')."
                )
            given = self._given(X, y, noise_variance, sample_weight)
            t = given.Y.shape[1]
            likelihood = self._resolved_likelihood(t)
            scaling = given.scaling(run, likelihood, self._shares_scale(given.known))
            source = given.source(scaling, likelihood, run.machine.device)
            training = self._prepare(source, likelihood, t, run)
            run.begin(source.X, source.Y, n_rows=source.n_rows)
            self._train(training, run)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, noise_variance=None, sample_weight=None) -> SVGPRegressor:
        """Update the posterior with further rows; the first call is `fit`.

        The current posterior is the prior for the new rows. With Gaussian noise, one pass over them
        gives the same result as all rows together. Hyperparameters and inducing points stay those
        of the first call, whose rows should therefore cover the whole range. Rows that are passed
        twice count twice.

        Parameters
        ----------
        X : array-like of shape (n, d)
            New rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            As for `fit`.
        sample_weight : float or array-like of shape (n,), optional
            As for `fit`.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            For rows unlike those of the first call.
        """
        if not hasattr(self, "n_iter_"):
            return self.fit(X, y, noise_variance, sample_weight)
        with FitRun(self) as run:
            X, Y = self._read_rows(X, y, reset=False)
            t, known = Y.shape[1], self._n_outputs()
            if t != known:
                raise ValueError(f"y has {t} targets, but the model was fitted with {known}.")
            run.ignores("normalize_y", "the first rows have set the units")
            given = GivenRows.read(self, X, Y, noise_variance, sample_weight)
            on = run.machine.device, torch.float64
            source = given.source(self._scaling, self.likelihood_, *on, reset=False)
            self._absorb(source, t, run)
        return self

    def _resolved_likelihood(self, t: int) -> Likelihood:
        asked = self.normalize_y not in ("auto", False)
        return resolve_likelihood(self.likelihood, t, normalize_y=asked)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = shares_covariance(self.likelihood)
        return tags

    def _has_low_rank_form(self) -> bool:
        return resolve_likelihood(self.likelihood, 1).additive

    def _check_rows(self, model, source) -> None:
        x = source.take(slice(0, 1)).X.double()
        if model.network is not None:
            x = x.new_zeros(1, model.network.n_features)
        with torch.no_grad():
            # White noise is the same for all rows, except in a few unusual products of kernels.
            white = model.kernel.noise(model.kernel.theta0, x)
        least = min(source.work.call(_least_noise)) + white
        if model.likelihood.additive and bool((least <= 0).any()):
            # At ranks, equal rows of different ranks are not found.
            source.work.call(_check_separable, white)
            check_noise(least)

    def _build_posterior(self) -> Posterior:
        return observed(super()._build_posterior(), self.likelihood_)


def _least_noise(source: RowSource) -> float:
    return float(source.noise.min(initial=math.inf))


def _check_separable(source: RowSource, white: torch.Tensor) -> None:
    check_duplicates(source.X, source.noise + white.cpu().numpy(), source.weight)
