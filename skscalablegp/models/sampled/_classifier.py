"""Quadruply stochastic Gaussian-process classification."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..._compat import StrOptions, fit_context
from ...core import GPClassifierBase, old_model_kept
from ...core.likelihoods import Bernoulli
from ._base import COMMON_CONSTRAINTS, QSGPMixin

# Its latent functions spread widely, for which the quadrature has many nodes.
_LIKELIHOOD = Bernoulli(n_nodes=101)
# Rows of one evaluation of the basis.
_ROWS = 1024


class QSGPClassifier(QSGPMixin, GPClassifierBase):
    """Gaussian-process classification by steps whose cost depends on neither rows nor functions.

    The kernel becomes a basis of m functions and variational inference finds a Gaussian belief
    about their weights under a logistic likelihood, from sampled rows and sampled basis functions.
    More than two classes are one against the rest, all in one pass over the data: kernel, basis,
    draws and covariance are shared, each class has its own mean.

    Small tables are solved by full-batch Newton steps instead (`inference_` says so).

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel, in units of the standardised columns. None is
        Constant * Matern(nu=1.5), one length scale a column up to 30 columns.
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
        What answers predictive variances after steps: the latent function given the support rows,
        each of which stands for n / control_variate_rank rows; or the chevron factor, whose
        diagonal of very many weights is nearly the prior's. Exact models have all of C.
    batch_size : int or "auto", default="auto"
        Rows of a step; "auto" is 500.
    feature_batch_size : int or "auto", default="auto"
        Functions of each draw; "auto" is a tenth of m, from 1,024 to 10,000, and all for
        basis="rows", whose few large weights make sampled sums noisy.
    control_variate_rank : int or "auto", default="auto"
        Support rows, at which f is known exactly: control variate and preconditioner. "auto" is 500
        up to 20,000 rows and 1,000 above.
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
        "auto" takes the kernel from an exact regression of labels -1 and 1 on `subset_size`
        rows, its variance from their Laplace evidence, then
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
    standardize : bool, default=True
        Centre and scale the columns of X.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit's weights, hyperparameters and basis, where the
        table has as many columns and the same labels, and for basis="rows" the same rows.
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
    classes_ : ndarray of shape (c,)
        Labels, sorted.
    kernel_ : kernel instance
        The trained scikit-learn kernel; its white noise is that of the starting regression only.
    likelihood_ : Likelihood
        A logistic one.
    coef_ : ndarray of shape (m, 1) or (m, c)
        Means of the weights, of the second class or of each.
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
    QSGPRegressor : The same for real targets, with the details.

    Notes
    -----
    The steps follow the gradient of a lower bound of the ELBO (theorem 3 of the paper), in which f
    is known at the support rows and sampled elsewhere: the better the draws determine f, the
    tighter it is. The variance of f in it is an unbiased estimate, whose root is off by O(1 / u)
    for u drawn functions. With m far above n the diagonal covariance is nearly the prior's.

    References
    ----------
    T. W. Evans, P. B. Nair (2020), Quadruply stochastic Gaussian processes.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skscalablegp import QSGPClassifier
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = QSGPClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints = COMMON_CONSTRAINTS | {
        "basis": [StrOptions({"fourier", "rows"}), "array-like"],
        "covariance": [StrOptions({"support", "chevron"})],
    }

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
        standardize: Any = True,
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
        self.standardize = standardize
        self.warm_start = warm_start
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    def _labels(self, codes: np.ndarray) -> np.ndarray:
        """(n, 1) or (n, c) of 0 and 1."""
        classes = [1] if len(self.classes_) == 2 else np.arange(len(self.classes_))
        return (codes[:, None] == classes).astype(np.float64)

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any) -> QSGPClassifier:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; an `np.memmap` is read a batch at a time.
        y : array-like of shape (n,)
            Labels of any kind.

        Returns
        -------
        self : QSGPClassifier

        Raises
        ------
        ValueError
            For a single class, or settings that contradict each other.
        MemoryError
            If the weights do not fit.
        """
        old = getattr(self, "classes_", None)
        with old_model_kept(self):
            X, codes = self._read_rows(X, y)
            labels = self._labels(codes)
            start = self._past(X, labels.shape[1]) if np.array_equal(old, self.classes_) else None
            self._train_on(X, labels, _LIKELIHOOD, False, start)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> QSGPClassifier:
        """Go on with further rows; the first call is `fit`.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Further rows.
        y : array-like of shape (n,)
            Their labels.
        classes : array-like of shape (c,), optional
            All labels that will ever come; at the first call.

        Returns
        -------
        self : QSGPClassifier

        Raises
        ------
        ValueError
            For labels that were not among the first call's, or its `classes`.
        """
        first = not self._fitted()
        X, codes = self._read_rows(X, y, reset=first, classes=classes if first else None)
        if first:
            self._train_on(X, self._labels(codes), _LIKELIHOOD, False, None)
            return self
        self._check_growing()
        self._train_on(X, self._labels(codes), _LIKELIHOOD, False, self._state, self._state.n_rows)
        return self

    # ------------------------------------------------------------------ predict

    def _latent(self, X: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (r, t) and variance (r, 1) of f, in double precision."""
        posterior = self._posterior()
        means, variances = [], []
        for start in range(0, len(X), _ROWS):
            rows = self._scaling.inputs(X[start : start + _ROWS], posterior.dtype, posterior.device)
            means.append(posterior.mean(rows).double())
            variances.append(posterior.variance(rows).double())
        return torch.cat(means), torch.cat(variances)[:, None]

    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        mean, variance = self._latent(X)
        p = self.likelihood_.predictive(mean, variance, torch.zeros(len(mean))).mean.numpy()
        if p.shape[1] == 1:
            return np.concatenate([1 - p, p], 1)
        return p / p.sum(1, keepdims=True)

    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent functions.

        Parameters
        ----------
        X : array-like of shape (r, d)
            Rows to predict.

        Returns
        -------
        mean : ndarray of shape (r,) or (r, c)
            Of the second class's function, or of each class's where there are more than two.
        variance : ndarray of shape (r,)
            Shared by all of them.
        """

        def answer(rows: np.ndarray) -> np.ndarray:
            return np.concatenate([part.numpy() for part in self._latent(rows)], 1)

        both = self._by_blocks(X, answer)
        mean = both[:, 0] if both.shape[1] == 2 else both[:, :-1]
        return mean, both[:, -1]
