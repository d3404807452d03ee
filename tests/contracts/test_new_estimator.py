"""Adding an estimator is one class: here the exact process on a random subset of the rows.

It keeps every promise of the package because `core` keeps them; CONTRIBUTING.rst walks through it.
"""

import numpy as np
import pytest
import torch
from contracts.estimator_contract import EstimatorContract, Row
from contracts.fit_contract import FitContract
from sklearn.utils.estimator_checks import parametrize_with_checks

from skscalablegp._compat import fit_context
from skscalablegp.core import FitRun, GPRegressorBase, exact_start, random_rows
from skscalablegp.core.posteriors import ExactPosterior
from skscalablegp.files import register
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import exact_marginal_likelihood
from skscalablegp.solvers import End


class SubsetGPRegressor(GPRegressorBase):
    """The exact Gaussian process of some random rows.

    Parameters
    ----------
    kernel : kernel instance, default=None
    subset_size : int, default=500
    alpha : float, default=1e-10
    optimizer : str or None, default="auto"
    max_iter : int, default=100
    normalize_y : bool or "auto", default="auto"
    copy_X_train : bool, default=True
    n_targets : int, default=None
    random_state : int or None, default=None
    memory_budget : float or "auto", default="auto"
    device : str, default="auto"
    dtype : str, default="auto"
    callbacks : callable or None, default=None
    max_seconds : float or None, default=None
    verbose : int, default=0

    Attributes
    ----------
    kernel_ : kernel
    X_train_, y_train_ : ndarray
    log_marginal_likelihood_value_ : float
    n_iter_, n_samples_seen_ : int
    history_, fit_report_ : dict
    device_, dtype_ : str
    n_features_in_ : int
    feature_names_in_ : ndarray
    """

    def __init__(
        self,
        kernel=None,
        *,
        subset_size=500,
        alpha=1e-10,
        optimizer="auto",
        max_iter=100,
        normalize_y="auto",
        copy_X_train=True,
        n_targets=None,
        random_state=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        max_seconds=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.subset_size = subset_size
        self.alpha = alpha
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None):
        with FitRun(self) as run:
            table = self._read_table(X, y, noise_variance, run)
            table.check_separable(self._compile_kernel(table, run))
            rows = random_rows(len(table.X), self.subset_size, run.generator).numpy()
            run.check_memory(24 * len(rows) ** 2, f"{len(rows)} rows", "use a smaller subset_size")
            run.chose("dtype", "float64", "few rows are trained on")
            if self.optimizer not in (None, "auto"):
                raise ValueError(f"optimizer must be 'auto' or None, got {self.optimizer!r}.")
            run.chose("optimizer", "bfgs", "values and gradients are exact")
            run.begin(table.X, table.y)
            self.dtype_ = "float64"
            self._keep_table(table.rows(rows))
            kernel = self._compile_kernel(table, run)
            problem = self._table().problem(kernel, torch.float64, run.device, keep=True)
            run.preview = lambda model, step: model._finish(kernel, step.theta)
            theta, n_iter, reason = kernel.theta0.numpy(), 0, End.CONVERGED
            if self.optimizer is not None:
                result = exact_start(problem, run, max_iter=self.max_iter)
                theta, n_iter, reason = result.theta, result.n_iter, result.stop_reason
            run.ended(reason, n_iter=n_iter)
            with run.stage("factor"):
                self._finish(kernel, theta)
        return self

    def _finish(self, kernel, theta):
        self.kernel_ = kernel.to_sklearn(torch.as_tensor(theta))
        posterior, value = self._factor()
        self._remember(posterior)
        self.log_marginal_likelihood_value_ = value

    def _factor(self):
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        problem = self._table().problem(kernel, torch.float64, self._fit_device(), keep=True)
        found = exact_marginal_likelihood(problem, kernel.theta0, False)
        operator = problem.operator(kernel.theta0)
        return ExactPosterior(operator, found.weights, found.factor), found.value

    def _build_posterior(self):
        return self._factor()[0]


# Model files have classes of the package, and those that are registered.
register(SubsetGPRegressor)

ROW = Row("subset", SubsetGPRegressor(subset_size=40), limit={"max_iter": 1})


@pytest.mark.slow
@parametrize_with_checks([ROW.estimator])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


class TestEstimator(EstimatorContract, rows=[ROW]):
    pass


class TestFit(FitContract, rows=[ROW]):
    # Its last part is one factor and asks for no `FitRun.finish`, which keeps what is reached.
    test_an_interrupt_of_the_last_part_keeps_the_best = None


def test_it_is_the_exact_process_of_its_rows():
    from sklearn.gaussian_process import GaussianProcessRegressor

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (80, 2))
    y = np.sin(X).sum(1) + 0.1 * rng.standard_normal(80)
    model = SubsetGPRegressor(subset_size=30, normalize_y=False, random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None)
    exact.fit(model.X_train_, model.y_train_)
    for ours, theirs in zip(
        model.predict(X, return_std=True), exact.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
