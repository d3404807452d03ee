"""Sampled models: default choices, and the coverage of their intervals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPClassifier, QSGPRegressor, QSRVMRegressor
from skscalablegp.metrics import interval_coverage


def friedman(n):
    X, f = make_friedman1(n + 500, 5, random_state=0)
    y = f + 0.25 * np.random.default_rng(0).standard_normal(n + 500)
    return X[:n], X[n:], y[:n], y[n:]


@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_the_default_is_the_exact_process(noise):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (200, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + noise**0.5 * rng.standard_normal(200)
    kernel = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(noise)
    settings = dict(optimizer=None, standardize=False, random_state=0)
    model = QSGPRegressor(kernel, **settings).fit(X[:150], y[:150])
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X[:150], y[:150])
    expected, std = exact.predict(X[150:], return_std=True)
    found = model.predict(X[150:], return_std=True)
    assert model.n_basis_ < 100 and "hundredth" in str(model.fit_report_)
    assert_allclose(found[0], expected, atol=0.03 * noise**0.5)
    assert_allclose(found[1], std, rtol=0.01)
    assert_allclose(model.predict(X[150:], return_cov=True)[1].diagonal(), found[1] ** 2, rtol=1e-6)


@pytest.mark.parametrize("n", [200, pytest.param(201, marks=pytest.mark.slow)])
@pytest.mark.parametrize("Model", [QSGPRegressor, QSRVMRegressor])
def test_intervals_hold_what_they_say(Model, n):
    X, X_test, y, y_test = friedman(n)
    model = Model(random_state=0).fit(X, y)
    coverage = interval_coverage(y_test, *model.predict(X_test, return_std=True), coverage=0.95)
    assert 0.9 < coverage < 0.99


@pytest.mark.slow
def test_a_class_model_does_not_jump_in_size():
    X, _, y, _ = friedman(201)
    sizes = [
        QSGPClassifier(random_state=0).fit(X[:n], y[:n] > 14).n_basis_ for n in (199, 200, 201)
    ]
    assert max(sizes) - min(sizes) <= 10


def test_few_functions_that_are_too_little_say_what_to_use(thresholds):
    # Half a nat better than the exact process is too little.
    thresholds(_BEHIND=-0.5)
    X, _, y, _ = friedman(120)
    with pytest.warns(ConvergenceWarning, match="higher under an exact process: use QSGPRegressor"):
        QSRVMRegressor(n_components=120, random_state=0).fit(X, y)


def test_targets_without_variance_keep_a_width():
    X = np.linspace(0, 1, 30)[:, None]
    std = QSRVMRegressor(random_state=0).fit(X, np.zeros(30)).predict_std(X)
    assert (std > 1e-4).all()


def test_a_smooth_function_of_many_columns_keeps_all_rows():
    X, X_new, y, _ = friedman(100)
    model = QSRVMRegressor(random_state=0).fit(X, y)
    assert len(model.relevance_) == 100
    assert "no function is dropped" in model.fit_report_.choices["n_components"].reason
    scale, center = X.std(0), X.mean(0)
    process = GaussianProcessRegressor(model.kernel_, optimizer=None)
    process.fit((X - center) / scale, (y - y.mean()) / y.std())
    mean, std = process.predict((X_new - center) / scale, return_std=True)
    seen = model.predict(X_new, return_std=True)
    assert_allclose(seen[0], mean * y.std() + y.mean(), rtol=1e-5)
    assert_allclose(seen[1], std * y.std(), rtol=1e-4)
    assert_allclose(
        model.lower_bound_, process.log_marginal_likelihood(process.kernel_.theta), rtol=1e-5
    )


def test_weak_evidence_keeps_all_functions():
    """A loss below 0.05 nats on 40 rows may be chance; on 300 rows it is not."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.standard_normal(300)
    few, many = (QSRVMRegressor(random_state=0).fit(X[:n], y[:n]) for n in (40, 300))
    reason = few.fit_report_.choices["n_components"].reason
    assert len(few.relevance_) == 40 and "no function is dropped" in reason
    assert float(reason.partition("(by ")[2].split()[0]) < 0.05
    assert len(many.relevance_) < 100


@pytest.mark.parametrize(
    ("Model", "n", "n_scales"),
    [
        (QSGPRegressor, 400, 40),
        (QSRVMRegressor, 400, 40),
        (QSGPRegressor, 399, 1),
        (QSGPRegressor, 2001, 1),
        (QSGPClassifier, 400, 1),
    ],
)
def test_many_columns_have_their_own_length_scales_if_there_are_rows(Model, n, n_scales):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 40))
    y = X[:, 0] if Model is not QSGPClassifier else X[:, 0] > 0
    model = Model(optimizer=None, n_components=20, random_state=0).fit(X, y)
    scales = [v for k, v in model.kernel_.get_params().items() if k.endswith("length_scale")]
    assert [np.size(scale) for scale in scales] == [n_scales]


@pytest.mark.seldom("QSGPClassifier-2-36", "QSGPClassifier-36-1")
@pytest.mark.slow
@pytest.mark.parametrize(("relevant", "n_scales"), [(2, 36), (36, 1)])
@pytest.mark.parametrize("Model", [QSGPRegressor, QSGPClassifier])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_evidence_chooses_length_scales_of_many_columns(Model, relevant, n_scales):
    """Of 36 columns two matter, or all of them alike, for which one length scale is enough."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2_001, 36))
    f = np.sin(X[:, :relevant].sum(1) / relevant**0.5)
    y = f > 0 if Model is QSGPClassifier else f + 0.3 * rng.standard_normal(len(X))
    settings = dict(n_components=64, subset_size=500, inference="exact", random_state=0)
    kernel = Model(**settings).fit(X, y).kernel_
    (scales,) = [v for k, v in kernel.get_params().items() if k.endswith("length_scale")]
    assert np.size(scales) == n_scales
    if n_scales > 1:
        assert set(np.argsort(scales)[:2]) == {0, 1}
        assert 2 * np.max(scales[:2]) < np.min(scales[2:])
