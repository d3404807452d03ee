"""Quadruply stochastic Gaussian-process classification."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..._compat import fit_context
from ...core import FitRun, GPClassifierBase
from ...core.data import RowSource
from ...core.likelihoods import (
    Bernoulli,
    best_power,
    class_shares,
    losses_of_powers,
    towards_shares,
    without_own_target,
)
from ...core.posteriors import Affine
from ._base import QSGPMixin
from ._start import random_part, rows_of

# The latent functions have large variances, so that the quadrature needs many nodes.
_LIKELIHOOD = Bernoulli(n_nodes=101)
# Rows of one evaluation of the basis, and rows that determine the power of the probabilities.
_ROWS, _POWER_ROWS = 1024, 2000


class QSGPClassifier(QSGPMixin, GPClassifierBase):
    """Gaussian-process classification by sampled basis functions, with a constant cost per step.

    The kernel is represented by a basis of m functions. Variational inference finds a Gaussian
    distribution of their weights under a logistic likelihood, from random batches of rows and of
    basis functions. With more than two classes each class is separated from the rest, in one pass
    over the data: the classes share the kernel, the basis, the draws and the covariance, and each
    has its own mean. See :ref:`default_sizes`.

    Small tables are solved by full-batch Newton steps instead; `inference_` is then "exact".

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its units are those of the standardised columns. None is Constant *
        Matern(nu=1.5), with one length scale per column for up to 30 columns. For up to 200 columns
        the start compares this with a single length scale. If steps follow, a squared exponential
        is compared with the Matern kernel, too.
    n_components : int or "auto", default="auto"
        Number of basis functions; each random frequency contributes two, a sine and a cosine. It is
        called m, and shared equally among the kernel's products. With "auto", basis="auto" chooses
        the number; Fourier features are four per row, but at least 256 and at most 1,024, or
        100,000 above 2,000 rows; kernel functions are as many as points. A number makes
        basis="auto" use Fourier features, and basis="rows" that many random rows.
    basis : {"auto", "fourier", "rows"} or ndarray of shape (m, d), default="auto"
        Basis functions of the model. They are random Fourier features, or kernel functions at all
        rows or at given points (in X's units). "auto" takes kernel functions for up to 5,000 rows.
        It adds rows as points until, given these, the variance of every row is below a hundredth of
        the noise, or as many as a few seconds allow. For more rows, in streams, and if
        `n_components`, `n_dense` or `inference` require features or steps, it takes "fourier". With
        kernel functions the hyperparameters stay at those of the exact start, and predictive
        variances include the variance given the points.
    standardize : bool, default=True
        Whether to subtract the mean of each column of X and divide by its standard deviation.
    optimizer : {"bfgs", "adam"} or None, default="bfgs"
        Method that trains the hyperparameters; None keeps them at their initial values. "bfgs"
        takes them from an exact regression on labels -1 and 1 of `subset_size` rows, and the signal
        variance from the Laplace evidence of these rows; they stay there. "adam", as in the paper,
        continues to train them during the steps.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 100 for up to 2,000 rows, 200 for up to 20,000
        and 500 for more. Full batches take at most 100 Newton steps.
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
        hyperparameters and basis. The table must have as many columns and the same labels, and for
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
        "chevron" is the factor that the steps train; its diagonal of very many weights remains
        close to the prior's. Exact models have a full covariance.
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
    classes_ : ndarray of shape (c,)
        Labels, sorted.
    kernel_ : kernel instance
        The trained scikit-learn kernel; its white noise is that of the starting regression only.
    likelihood_ : Likelihood
        The logistic likelihood of a class against the rest.
    latent_constant_ : ndarray of shape (1,) or (c,)
        Constants of the latent functions. They start at the log odds of the second class, or of
        each class, and are trained.
    class_prior_ : ndarray of shape (c,)
        Shares of the classes among the rows of all calls, with one more row divided among them.
    probability_power_ : float
        The power of the ratio of probabilities to `class_prior_`, by which this is multiplied, with
        the lowest leave-one-out log loss on up to 2,000 training rows of each call. It is shrunk
        towards 0, the shares of the classes, by 5 / g, where g is the gain over these in nats, and
        is 0 if there is no such gain. With ``inference="stochastic"`` it is at least 1 before that.
    coef_ : ndarray of shape (m, 1) or (m, c)
        Means of the weights, for the second class or for each class.
    inference_ : str
        "exact" or "stochastic".
    n_basis_ : int
        Number m of basis functions.
    lower_bound_ : float
        The ELBO, summed over rows and classes; an estimate if training took steps. It is NaN after
        steps with kernel functions, because a term of their bound would cost O(n^3).
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
    QSGPRegressor : The same model for regression, described in more detail.

    Notes
    -----
    By default, where all functions at the rows of a batch cost about as much as draws do, steps use
    all of them and solve for the dual weights of the rows; see the notes of `QSGPRegressor`.

    Other steps follow the gradient of a lower bound of the ELBO (theorem 3 of the paper). In this
    bound f is known at the support rows and sampled elsewhere, so that it is tighter where the
    draws determine f better. The variance of f is estimated without bias, and its root with a bias
    of O(1 / u) for u drawn functions. The last steps, a share of 2.5 u / m of them, have neither
    bias, because they compute f at their rows from all m functions. With m far above n the diagonal
    covariance is close to the prior's.

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

    # Sums over the rows of all calls; files of earlier versions have none.
    _power_losses: float | np.ndarray = 0.0

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components="auto",
        basis="auto",
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

    def _columns(self, codes: np.ndarray) -> np.ndarray:
        """(n, 1) or (n, c) of 0 and 1."""
        classes = [1] if len(self.classes_) == 2 else np.arange(len(self.classes_))
        return (codes[:, None] == classes).astype(np.float64)

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> QSGPClassifier:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows; an `np.memmap` is read a batch at a time.
        y : array-like of shape (n,)
            Labels of any kind.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, and a row of
            weight zero is left out. Weights need not be whole numbers. Equal rows with equal
            labels are merged before the fit, so that weights and repeated rows give the same
            model. A memory map is searched for equal rows, and then copied, only with weights.

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
        with FitRun(self) as run:
            given = self._given(X, y, sample_weight)
            past = self._past(given.X, given.Y.shape[1])
            past = past if np.array_equal(old, self.classes_) else None
            self._train(run, self._source_of(given, _LIKELIHOOD, run, past), _LIKELIHOOD, past)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None) -> QSGPClassifier:
        """Continue with further rows; the first call fits a new model.

        The shares of the classes and the power of the probabilities follow the rows of all calls:
        where few first rows leave the shares alone as probabilities, later rows bring in the latent
        functions.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Further rows.
        y : array-like of shape (n,)
            Their labels.
        classes : array-like of shape (c,), optional
            All labels of the stream. The first call needs them if its rows lack some of them.
        sample_weight : float or array-like of shape (n,), optional
            As in `fit`.

        Returns
        -------
        self : QSGPClassifier

        Raises
        ------
        ValueError
            For labels that were not among the first call's, or its `classes`.
        """
        first = "n_iter_" not in vars(self)
        with FitRun(self) as run:
            known = classes if first else None
            given = self._given(X, y, sample_weight, known, reset=first)
            past = None if first else self._state
            n_seen = 0 if first else past.n_rows
            if not first:
                self._check_growing()
            source = self._source_of(given, _LIKELIHOOD, run, past)
            self._train(run, source, _LIKELIHOOD, past, n_seen, grows=first)
        return self

    def _train(self, run, source, likelihood, past=None, n_seen=0.0, grows=False):
        """Also determine the shares of the classes and the power, with those of earlier rows."""
        before = (self.class_prior_, self.n_samples_seen_) if n_seen else None
        (labels, counts), c = source.labels(), len(self.classes_)
        self.class_prior_ = class_shares(_codes(torch.as_tensor(labels)), c, counts, before)
        if before is None:
            self.probability_power_, self._power_losses = 1.0, 0.0
        super()._train(run, source, likelihood, past, n_seen, grows)
        if not run.stopped:
            with run.stage("calibration", optional=True):
                losses = self._losses_of_powers(source, trained=before is None)
                self._power_losses = self._power_losses + losses
                # The variances of steps with some functions come from a diagonal and few columns.
                # They give a row more weight in its own prediction than it has, and without that
                # prediction too little is known: of 1,617 digits a power of .37, where new ones
                # ask for 4 (log loss .18, with full power .05).
                least = 0.0 if self.inference_ == "exact" else 1.0
                self.probability_power_ = best_power(self._power_losses, least=least)

    @torch.no_grad()
    def _losses_of_powers(self, source: RowSource, trained: bool) -> np.ndarray:
        """Leave-one-out log losses with the powers of the probabilities that are compared.

        `trained` says whether these rows have trained the hyperparameters.
        """
        n, posterior = len(source), self._build_posterior()
        generator = np.random.RandomState(0)
        index, counts = random_part(source, np.arange(n), _POWER_ROWS, generator)
        rows, parts = rows_of(source, index, counts), []
        for some in rows.blocks(_ROWS):
            X = some.X.to(posterior.device, posterior.dtype)
            given = *posterior.moments(X)[:2], posterior.learned_variance(X)
            mean, variance, known = (part.double().cpu() for part in given)
            terms = _LIKELIHOOD.expected(some.Y, mean, variance[:, None], torch.zeros(len(X)))
            mean, left = without_own_target(terms, mean, known[:, None])
            parts.append(_probabilities(mean, left + (variance - known)[:, None]))
        n_trained = 0.0
        if trained and self.optimizer is not None and self.subset_size is not None:
            # They were trained with random rows, of which these are a part. White noise is no part
            # of this model.
            free = [each for each in self.kernel_.hyperparameters if not each.fixed]
            sizes = [each.n_elements for each in free if not each.name.endswith("noise_level")]
            n_trained = sum(sizes) * len(index) / n
        shares, p = torch.as_tensor(self.class_prior_), torch.cat(parts)
        return losses_of_powers(p, _codes(rows.Y), shares, rows.weight, n_trained)

    # ------------------------------------------------------------------ predict

    @property
    def latent_constant_(self) -> np.ndarray:
        """Constants of the latent functions, shape (1,) or (c,)."""
        return self._state.constant

    def _latent(self, X: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (r, t) and variance (r, 1) of f, in double precision."""
        posterior, parts = self._posterior(), []
        for start in range(0, len(X), _ROWS):
            rows = self._scaling.inputs(X[start : start + _ROWS], posterior.dtype, posterior.device)
            parts.append([part.double().cpu() for part in posterior.moments(rows)[:2]])
        mean, variance = map(torch.cat, zip(*parts, strict=True))
        return mean, variance[:, None]

    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        mean, variance = self._latent(X)
        p, shares = _probabilities(mean, variance), torch.as_tensor(self.class_prior_)
        return towards_shares(p, shares, self.probability_power_).numpy()

    def _as_module(self) -> nn.Module:
        return _ClassModule(self)

    def latent_mean_and_variance(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent functions.

        Parameters
        ----------
        X : array-like of shape (r, d)
            Rows to predict.

        Returns
        -------
        mean : ndarray of shape (r,) or (r, c)
            Mean of the second class's function, or of each class's if there are more than two.
        variance : ndarray of shape (r,)
            Their common variance.
        """

        def answer(rows: np.ndarray) -> np.ndarray:
            return np.concatenate([part.numpy() for part in self._latent(rows)], 1)

        both = self._by_blocks(X, answer)
        mean = both[:, 0] if both.shape[1] == 2 else both[:, :-1]
        return mean, both[:, -1]


class _ClassModule(nn.Module):
    """The probabilities of a `QSGPClassifier`: rows (m, d) to (m, c)."""

    shares: torch.Tensor

    def __init__(self, of: QSGPClassifier):
        super().__init__()
        self.inputs = Affine(of._scaling.x_mean, of._scaling.x_scale)
        self.latent, self._power = of._posterior().module(), float(of.probability_power_)
        self.register_buffer("shares", torch.tensor(of.class_prior_))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        mean, variance, _ = self.latent.moments(self.inputs(X))
        return towards_shares(_probabilities(mean, variance[:, None]), self.shares, self._power)


def _codes(Y: torch.Tensor) -> torch.Tensor:
    """Numbers (n,) of the classes, from the targets (n, 1) or (n, c) of the latent functions."""
    return Y[:, 0].long() if Y.shape[1] == 1 else Y.argmax(1)


def _probabilities(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Probabilities (m, c) from the moments (m, t) and (m, 1) of the latent functions."""
    p = _LIKELIHOOD.predictive(mean, variance, torch.zeros_like(mean[:, 0])).mean
    return torch.cat([1 - p, p], 1) if p.shape[1] == 1 else p / p.sum(1, keepdim=True)
