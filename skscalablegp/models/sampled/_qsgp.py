"""Quadruply stochastic Gaussian-process regression."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..._compat import Interval, StrOptions, fit_context
from ...core import MinibatchGPRegressorBase, shared_parameters
from ...core.likelihoods import Likelihood, resolve_likelihood
from ...core.posteriors import Posterior, observed
from ._base import COMMON_CONSTRAINTS, QSGPMixin


class QSGPRegressor(QSGPMixin, MinibatchGPRegressorBase):
    """Gaussian-process regression whose steps cost the same for any number of rows and functions.

    The kernel becomes a basis of m functions, ten million if need be, and variational inference
    finds a Gaussian belief about their weights. Each step draws rows, and basis functions twice
    independently (three times where hyperparameters move), so that its cost depends on the draws'
    sizes alone. Frequencies of Fourier
    features are regenerated from seeds, and X may be a memory map.

    Small tables are solved exactly instead: where linear algebra with all rows and all functions is
    cheaper than steps, the same model's optimum is computed in closed form (`inference_` says so).

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel, in units of the standardised columns. None is
        Constant * Matern(nu=1.5) + White, one length scale a column up to 30 columns, the signal's
        variance at most ten times the target's (random features err by a share of it). A kernel
        without WhiteKernel gets one: the likelihood needs noise.
    n_features : int or "auto", default="auto"
        m. "auto" is 256 up to 200 rows, 1,024 up to 2,000 and 100,000 above; for kernel functions,
        the number of points: all rows, or so many random ones for basis="rows".
    basis : {"fourier", "rows"} or ndarray of shape (m, d), default="fourier"
        Random Fourier features, or kernel functions at all rows or at given points (in X's units).
        With kernel functions the hyperparameters stay where the exact start leaves them, and
        predictive variances are augmented so that they grow away from the points.
    n_dense : int or "auto", default="auto"
        Dense columns of the covariance's Cholesky factor; all others are diagonal, in closed form.
        "auto" is 20, none for kernel functions, all when solved exactly.
    covariance : {"support", "chevron"}, default="support"
        What answers predictive variances after steps: the variance given the support rows, each of
        which stands for n / control_variate_rank rows; from 2,000 rows on some are held out and
        choose a factor of it and the noise that predictions have (`kernel_` keeps its own). Or the
        chevron factor, which knows no correlations between most weights and may be far too narrow
        or too wide. Kernel functions keep their augmented chevron, exact models have all of C.
    batch_size : int or "auto", default="auto"
        Rows of a step; "auto" is 500.
    feature_batch_size : int or "auto", default="auto"
        Functions of each draw; "auto" is a tenth of m, from 1,024 to 10,000, and all for
        basis="rows", whose few large weights make sampled sums noisy.
    control_variate_rank : int or "auto", default="auto"
        Support rows, at which f is known exactly: control variate and preconditioner. "auto" is 500
        up to 20,000 rows and 1,000 above.
    likelihood : {"gaussian", "laplace"} or Likelihood, default="gaussian"
        "laplace" is robust to outliers; its scale is the root of half the noise variance. Any
        log-concave one from ``skscalablegp.likelihoods``, or of your own, is accepted.
    inference : {"auto", "exact", "stochastic"}, default="auto"
        Full-batch linear algebra, O(n m^2), or steps. Kernel functions at given points, or at some
        of the rows, always have full batches.
    variational_optimizer : {"preconditioned", "adagrad", "adam"}, default="preconditioned"
        Of the weights' means. "adagrad" from zero is the paper's.
    learning_rate : float or "auto", default="auto"
        1 for "preconditioned" (in units of the largest safe step), 0.1 and 0.01 for the others.
    decay : float, default=0.1
        What learning rates have come down to at the last step, exponentially.
    optimizer : {"auto", "adam"} or None, default="auto"
        "auto" takes the hyperparameters from an exact Gaussian process on `subset_size` rows, then
        moves them by Adam during the steps, as "adam" does; None keeps the kernel's.
    hyperparameter_learning_rate : float, default=1e-5
        Of that Adam; 0 stops after the exact start.
    freeze : float, default=0.1
        Share of the steps before hyperparameters move.
    subset_size : int, default=1000
        Rows of the exact start.
    n_restarts_optimizer : int, default=0
        Its further starts.
    max_iter : int or "auto", default="auto"
        Steps; "auto" is 100 up to 2,000 rows, 200 up to 20,000 and 500 above.
    n_iter_no_change : int or None, default=None
        Stop after so many scores (twenty a fit) without a gain.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    standardize : bool, default=True
        Centre and scale the columns of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit's weights, hyperparameters and basis, where the
        table has as many columns and targets, and for basis="rows" the same rows.
    random_state : int, RandomState instance or None, default=None
        Seed of basis, draws and subset. None draws a new one at each fit.
    memory_budget : float or "auto", default="auto"
        Bytes that weights may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Of the steps; "auto" is float32, float64 when solved exactly.
    callbacks : callable, list of callable or None, default=None
        Called after each score with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget; the best state so far is kept.
    verbose : int, default=0
        1 shows a progress bar.

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
        Estimate of the ELBO a row and target; the expected log likelihood when solved exactly.
    n_iter_ : int
        Steps, of all calls of `partial_fit` together.
    history_ : dict of lists
        stage, theta, objective (minus the ELBO a row), residual, epochs and seconds of each score.
    solver_info_ : dict
        Why training stopped, and the plan in words.
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    QSGPClassifier : The same for labels.
    QSRVMRegressor : With a sparse basis of kernel functions.

    Notes
    -----
    A step costs O(b u (d + t) + b s^2) for b rows, u drawn functions and s support rows. Before the
    steps come one pass over the basis at the support rows, O(s^2 m), and an exact Gaussian process
    on 1,000 rows. Memory is that of the weights, m (t + n_dense) numbers, and some thousands of
    rows.

    References
    ----------
    T. W. Evans, P. B. Nair (2020), Quadruply stochastic Gaussian processes.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import QSGPRegressor
    >>> X, y = make_friedman2(n_samples=300, noise=1.0, random_state=0)
    >>> gp = QSGPRegressor(normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    _parameter_constraints = (
        COMMON_CONSTRAINTS
        | {
            "basis": [StrOptions({"fourier", "rows"}), "array-like"],
            "covariance": [StrOptions({"support", "chevron"})],
            "likelihood": [str, Likelihood],
            "n_targets": [Interval(Integral, 1, None, closed="left"), None],
        }
        | shared_parameters("normalize_y")
    )

    def __init__(
        self,
        kernel: Any = None,
        *,
        n_features: Any = "auto",
        basis: Any = "fourier",
        n_dense: Any = "auto",
        covariance: Any = "support",
        batch_size: Any = "auto",
        feature_batch_size: Any = "auto",
        control_variate_rank: Any = "auto",
        likelihood: Any = "gaussian",
        inference: Any = "auto",
        variational_optimizer: Any = "preconditioned",
        learning_rate: Any = "auto",
        decay: Any = 0.1,
        optimizer: Any = "auto",
        hyperparameter_learning_rate: Any = 1e-5,
        freeze: Any = 0.1,
        subset_size: Any = 1000,
        n_restarts_optimizer: Any = 0,
        max_iter: Any = "auto",
        n_iter_no_change: Any = None,
        normalize_y: Any = False,
        standardize: Any = True,
        n_targets: Any = None,
        warm_start: Any = False,
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.n_features = n_features
        self.basis = basis
        self.n_dense = n_dense
        self.covariance = covariance
        self.batch_size = batch_size
        self.feature_batch_size = feature_batch_size
        self.control_variate_rank = control_variate_rank
        self.likelihood = likelihood
        self.inference = inference
        self.variational_optimizer = variational_optimizer
        self.learning_rate = learning_rate
        self.decay = decay
        self.optimizer = optimizer
        self.hyperparameter_learning_rate = hyperparameter_learning_rate
        self.freeze = freeze
        self.subset_size = subset_size
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.normalize_y = normalize_y
        self.standardize = standardize
        self.n_targets = n_targets
        self.warm_start = warm_start
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any) -> QSGPRegressor:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; an `np.memmap` is read a batch at a time.
        y : array-like of shape (n,) or (n, t)
            Targets, which share hyperparameters and covariance.

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        ValueError
            For settings that contradict each other: more dense columns or drawn functions than
            functions; for an unknown likelihood, and one that is not log-concave.
        MemoryError
            If the weights do not fit.
        """
        X, Y = self._read_rows(X, y)
        likelihood = self._checked_likelihood(Y.shape[1])
        self._train_on(X, Y, likelihood, self.normalize_y, self._past(X, Y.shape[1]))
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any) -> QSGPRegressor:
        """Go on with further rows; the first call is `fit`.

        An exact model takes its posterior for the prior of these rows, which for a Gaussian
        likelihood is the fit of all rows so far. Steps, otherwise, see these rows only, standing
        for all rows so far. Units and hyperparameters stay.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Further rows.
        y : array-like of shape (n,) or (n, t)
            Their targets.

        Returns
        -------
        self : QSGPRegressor

        Raises
        ------
        ValueError
            For a basis at the rows themselves, which further rows would change.
        """
        if not self._fitted():
            return self.fit(X, y)
        X, Y = self._read_rows(X, y, reset=False)
        self._check_growing()
        if Y.shape[1] != self._state.mean.shape[2]:
            raise ValueError(
                f"y has {Y.shape[1]} targets, but the model was fitted with "
                f"{self._state.mean.shape[2]}."
            )
        self._train_on(X, Y, self.likelihood_, self.normalize_y, self._state, self._state.n_rows)
        return self

    def _checked_likelihood(self, t: int) -> Likelihood:
        return resolve_likelihood(self.likelihood, t, sampled=True, normalize_y=self.normalize_y)

    def _build_posterior(self) -> Posterior:
        return observed(super()._build_posterior(), self.likelihood_)
