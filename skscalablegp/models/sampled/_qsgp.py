"""Quadruply stochastic Gaussian-process regression."""

from __future__ import annotations

from typing import Any

from ..._compat import fit_context
from ...core import FitRun, GivenRows, MinibatchGPRegressorBase
from ...core.likelihoods import Likelihood, resolve_likelihood
from ...core.posteriors import Posterior, observed
from ._base import QSGPMixin


class QSGPRegressor(QSGPMixin, MinibatchGPRegressorBase):
    """Gaussian-process regression by sampled basis functions, with a constant cost per step.

    The kernel is represented by a basis of m functions, up to ten million, and variational
    inference finds a Gaussian distribution of their weights. Each step draws a batch of rows and
    two independent batches of basis functions (three if hyperparameters are trained), so that its
    cost depends on the sizes of these draws alone. Frequencies of Fourier features are regenerated
    from seeds, and X may be a memory map. See :ref:`default_sizes`.

    Smaller tables are solved exactly instead, with kernel functions at some of the rows. These rows
    are chosen so that they nearly determine the function at the others, and the result is close to
    the exact process. `inference_` says which of the two was used, and `fit_report_` the number of
    functions and the reason.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its units are those of the standardised columns. None is Constant *
        Matern(nu=1.5) + White, with one length scale per column for up to 30 columns, and for more
        if there are at most 2,000 rows, at least ten for each column, and the likelihood is
        Gaussian. For up to 200 columns the start compares this with a single length scale. If steps
        follow, a squared exponential is compared with the Matern kernel, too. With Fourier
        features, whose error is proportional to the signal variance, this variance is at most ten
        times the target's. A kernel without WhiteKernel receives one, because the likelihood needs
        noise.
    likelihood : {"gaussian", "laplace"} or Likelihood, default="gaussian"
        Distribution of the target given the latent function. "laplace" is robust to outliers; its
        scale is the root of half the noise variance. Any log-concave likelihood from
        ``skscalablegp.likelihoods``, or one of your own, is accepted.
    n_components : int or "auto", default="auto"
        Number of basis functions; each random frequency contributes two, a sine and a cosine. It is
        called m, and shared equally among the kernel's products. With "auto", basis="auto" chooses
        the number; Fourier features are four per row, but at least 256 and at most 1,024, or
        100,000 above 2,000 rows; kernel functions are as many as points. A number makes
        basis="auto" use Fourier features, and basis="rows" that many random rows.
    basis : {"auto", "fourier", "rows"} or ndarray of shape (m, d), default="auto"
        Basis functions of the model. They are random Fourier features, or kernel functions at all
        rows or at given points (in X's units). "auto" takes kernel functions for up to 12,000 rows.
        It adds rows as points until, given these, the variance of every row is below a hundredth of
        the noise, or as many as a few seconds allow. For more rows, in streams, and if
        `n_components`, `n_dense` or `inference` require features or steps, it takes "fourier". With
        kernel functions the hyperparameters stay at those of the exact start, and predictive
        variances include the variance given the points.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    standardize : bool, default=True
        Whether to subtract the mean of each column of X and divide by its standard deviation.
    optimizer : {"bfgs", "adam"} or None, default="bfgs"
        Method that trains the hyperparameters; None keeps them at their initial values. "bfgs"
        takes them from an exact Gaussian process on `subset_size` rows and keeps them. "adam", as
        in the paper, continues to train them during the steps.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 100 for up to 2,000 rows, 200 for up to 20,000
        and 500 for more. Full batches take at most 100 Newton steps, and a single one under a
        Gaussian likelihood.
    batch_size : int, default=500
        Number of rows in a training step. Full batches ignore this and the other parameters of
        steps.
    inference : {"auto", "exact", "stochastic"}, default="auto"
        Whether the weights are computed with full-batch linear algebra or by stochastic steps.
        "exact" costs O(n m^2). "auto" takes "exact" if it is cheaper. Kernel functions at given
        points, or at some of the rows, are always solved by full batches.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel. They apply to the exact start only.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        basis, the draws and the subset.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. If the budget ends
        during the exact start, the model is the exact process on the start's rows.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. A fit
        that would take more is refused before it starts.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions are made
        there too.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float32 for steps; full batches are
        always in float64.
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
    learning_rate : float, default=1e-05
        Step size of the optimiser, for optimisers that have one. Only "adam" has one. The
        default is that of the paper for 100,000 steps.
    n_iter_no_change : int or None, default=None
        Number of steps or scores without progress after which training ends; None switches this
        rule off. A fit has twenty scores.
    subset_size : int or None, default=1000
        Number of rows in the exact fit from which training starts. None skips this fit.
    warm_start : bool, default=False
        Whether a fit continues from the previous fit. It then starts from the previous weights,
        hyperparameters and basis. The table must have as many columns and targets, and for
        basis="rows" the same rows.
    component_batch_size : int or "auto", default="auto"
        Number of basis functions in one random draw. "auto" is a tenth of m, but at least 1,024 and
        at most 10,000. For basis="rows" it is m, because a few large weights would make sampled
        sums noisy.
    n_dense : int or "auto", default="auto"
        Number of dense columns in the factor of the covariance; the remaining columns are diagonal.
        It is at most m. "auto" is 20 for Fourier features, 0 for kernel functions at all rows, and
        m if the model is solved exactly.
    covariance : {"support", "chevron"}, default="support"
        Method that computes predictive variances after stochastic training. "support" is the
        variance given the support rows, each of which stands for n / control_variate_rank rows.
        From 2,000 rows on, held-out rows choose a factor of this variance and the noise of
        predictions (`kernel_` keeps its own noise). "chevron" is the factor that the steps train.
        It contains no correlations between most weights, so that its variances may be far too small
        or too large. Kernel functions keep their augmented chevron, and exact models have a full
        covariance.
    control_variate : {"regression", "squares"} or None, default="regression"
        Control variate that reduces the variance of stochastic steps. "regression" predicts the
        function at each row from its values at the support rows. "squares" is the paper's choice,
        for Gaussian noise only. None uses the draws alone.
    control_variate_rank : int or "auto", default="auto"
        Number of support rows, at which the latent function is computed exactly. They serve as
        control variate and preconditioner. "auto" is 500 for up to 20,000 rows and 1,000 for more.
    variational_optimizer : {"preconditioned", "adagrad"}, default="preconditioned"
        Optimiser of the variational distribution. It trains the distribution of the weights.
        "adagrad", which starts from zero, is the paper's choice.
    variational_learning_rate : float or "auto", default="auto"
        Step size of the variational optimiser. "auto" is 1 for "preconditioned" (in units of the
        largest safe step) and 0.1 for "adagrad".
    decay : float, default=0.1
        Fraction of the learning rates that remains at the last step. They fall exponentially.
    freeze : float, default=0.1
        Fraction of the steps during which the hyperparameters stay fixed. Only optimizer="adam"
        uses it.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel.
    likelihood_ : Likelihood
        The likelihood that was used.
    coef_ : ndarray of shape (m, t)
        Means of the weights.
    inference_ : str
        "exact" or "stochastic".
    n_basis_ : int
        m.
    lower_bound_ : float
        The ELBO, summed over rows and targets. It is the log evidence if a Gaussian likelihood is
        solved exactly, and an estimate if training took steps. It is NaN after steps with kernel
        functions, because a term of their bound would cost O(n^3).
    n_iter_ : int
        Steps of the last call, including those of the exact start.
    history_ : dict of lists
        stage, iteration, theta, objective (what is maximised), objective_name, residual, epochs and
        seconds of each step of the start and of each score.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto", ignored parameters and seconds.
    n_samples_seen_ : int
        Number of rows, of all calls of `partial_fit` together.
    device_, dtype_ : str
        Device and precision of training.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    QSGPClassifier : The same model for classification.
    QSRVMRegressor : A sparse model of kernel functions.

    Notes
    -----
    A step costs O(b u (d + t) + b s^2) for b rows, u drawn functions and s support rows. Block
    steps replace it if b m is at most 4 u (1.5 s + b) and 2^26, and the signal variance at most 250
    times the noise. They are independent of n too, but use all m functions at the rows, in
    O(b m (d + t) + b^2 m + b^3), and keep a dual weight for each row and target. Each maximises the
    bound over the dual weights of its rows, which converges far sooner and needs no rate. The
    dense columns stay at the posterior given the support rows, and rows held out for the scale of
    variances take part in the last 30 % of the steps. If the likelihood is not Gaussian, a block
    step takes up to eight Newton steps, in O(b^3) each. They need the variance of f at the rows,
    which comes from the batch: each of its other rows stands for n / b rows of the table.

    Any other `control_variate`, `variational_optimizer`, `variational_learning_rate`, `covariance`
    or ``optimizer="adam"`` keeps sampled steps, as do fits that continue. In these, estimates of f
    from draws leave a bias if the likelihood is not Gaussian. The last steps, a share of 2.5 u / m
    of them, therefore compute f at their rows from all functions, in O((b + s) m), which at most
    doubles the time; ``control_variate="squares"`` or None omits it. Before the steps a fit makes
    one pass over the basis at the support rows, O(s^2 m), and trains an exact Gaussian process on
    1,000 rows. The memory is that of the weights, m (t + n_dense) numbers, and of a few thousand
    rows.

    References
    ----------
    T. W. Evans, P. B. Nair (2020), Quadruply stochastic Gaussian processes.

    S. Shalev-Shwartz, T. Zhang (2013), Stochastic dual coordinate ascent methods for regularized
    loss minimization. Block steps follow it.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import QSGPRegressor
    >>> X, y = make_friedman2(n_samples=300, noise=1.0, random_state=0)
    >>> gp = QSGPRegressor(normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    _robust_likelihood = "laplace"

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        likelihood="gaussian",
        n_components="auto",
        basis="auto",
        normalize_y="auto",
        standardize=True,
        optimizer="bfgs",
        max_iter="auto",
        batch_size=500,
        inference="auto",
        n_restarts_optimizer=0,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        n_targets=None,
        learning_rate=1e-05,
        n_iter_no_change=None,
        subset_size=1000,
        warm_start=False,
        component_batch_size="auto",
        n_dense="auto",
        covariance="support",
        control_variate="regression",
        control_variate_rank="auto",
        variational_optimizer="preconditioned",
        variational_learning_rate="auto",
        decay=0.1,
        freeze=0.1,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None, sample_weight=None) -> QSGPRegressor:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; an `np.memmap` is read a batch at a time.
        y : array-like of shape (n,) or (n, t)
            Targets, which share hyperparameters and covariance.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. The variance of the
            kernel's white noise is added to it. Cross-validation splits it if metadata routing is
            enabled.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            with equal targets are merged before the fit, so that weights and repeated rows give the
            same model. A memory map is searched for equal rows, and then copied, only with weights.

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        ValueError
            For settings that contradict each other, and for a likelihood that is unknown or not
            log-concave.
        MemoryError
            If the weights do not fit.
        """
        return self._fit(X, y, noise_variance, sample_weight, grows=False)

    def _fit(
        self, X: Any, y: Any, noise_variance: Any, sample_weight: Any, grows: bool
    ) -> QSGPRegressor:
        with FitRun(self) as run:
            given = self._given(X, y, noise_variance, sample_weight)
            likelihood = self._checked_likelihood(given.Y.shape[1])
            past = self._past(given.X, given.Y.shape[1])
            source = self._source_of(given, likelihood, run, past)
            self._train(run, source, likelihood, past, grows=grows)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, noise_variance=None, sample_weight=None) -> QSGPRegressor:
        """Continue with further rows; the first call fits a new model.

        An exact model takes its posterior as the prior of the new rows, which for a Gaussian
        likelihood gives the fit of all rows so far. Otherwise steps see only the new rows, which
        stand for all rows so far. Units and hyperparameters do not change.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Further rows.
        y : array-like of shape (n,) or (n, t)
            Their targets.
        noise_variance : float or array-like of shape (n,), optional
            As in `fit`.
        sample_weight : float or array-like of shape (n,), optional
            As in `fit`.

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        ValueError
            For ``basis="rows"``, which further rows would change.
        """
        if "n_iter_" not in vars(self):
            return self._fit(X, y, noise_variance, sample_weight, grows=True)
        with FitRun(self) as run:
            X, Y = self._read_rows(X, y, reset=False)
            self._check_growing()
            past = self._state
            if Y.shape[1] != past.n_targets:
                raise ValueError(
                    f"y has {Y.shape[1]} targets, but the model was fitted with {past.n_targets}."
                )
            run.ignores("likelihood", "the first rows determined it")
            given = GivenRows.read(self, X, Y, noise_variance, sample_weight)
            source = self._source_of(given, self.likelihood_, run, past)
            self._train(run, source, self.likelihood_, past, n_seen=past.n_rows)
        return self

    def _checked_likelihood(self, t: int) -> Likelihood:
        asked = self.normalize_y not in ("auto", False)
        return resolve_likelihood(self.likelihood, t, sampled=True, normalize_y=asked)

    def _build_posterior(self) -> Posterior:
        return observed(super()._build_posterior(), self.likelihood_)
