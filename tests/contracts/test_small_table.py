"""The exact process in place of a method on small tables, in every estimator with the choice."""

import functools
import inspect
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import WhiteKernel

import skscalablegp
from skscalablegp import IterativeGPRegressor

CLASSES = [
    name
    for name in skscalablegp.__all__
    if name[0].isupper()
    and "small_table" in inspect.signature(getattr(skscalablegp, name).__init__).parameters
]
# The others are slow.
QUICK = ("KISSGPRegressor", "RFFRegressor", "SVGPRegressor", "SVGPClassifier")
SOME = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CLASSES]
# Up to 512 rows all are inducing points, and the collapsed bound is exact without a replacement.
ROWS = {"SGPRRegressor": 530}
# Settings that make the method cheap, and that do not ask for it.
QUICK = {"max_epochs": 3, "max_iter": 5}


def table(n):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def unfitted(name, **settings):
    model = getattr(skscalablegp, name)(random_state=0)
    known = model.get_params()
    return model.set_params(**{k: v for k, v in (QUICK | settings).items() if k in known})


@functools.cache
def fitted(name, **settings):
    X, y = table(ROWS.get(name, 150))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unfitted(name, **settings).fit(X, y), X, y


def test_the_estimators_that_have_the_choice():
    assert len(CLASSES) == 11


@pytest.mark.parametrize("name", CLASSES)
def test_the_first_line_of_the_docstring_names_the_choice(name):
    first = inspect.getdoc(getattr(skscalablegp, name)).splitlines()[0]
    assert "exact" in first and "small_table" in first


@pytest.mark.parametrize("name", SOME)
def test_the_report_says_which_of_the_two_answers(name):
    exact, X, _ = fitted(name)
    assert exact.fit_report_.summary.startswith(f"the exact process of {len(X)} rows")
    first = str(exact.fit_report_).splitlines()[0]
    assert "exact process" in first and "small_table" in first
    method, X, y = fitted(name, small_table="method")
    assert "exact process" not in method.fit_report_.summary
    assert "small_table" not in str(method.fit_report_).splitlines()[0]
    assert method.score(X, y) > -1 and np.isfinite(method.predict_std(X)).all()


@pytest.mark.parametrize("name", SOME)
def test_what_answers_is_the_exact_process(name):
    """The trained kernel in an exact model, whose predictions other tests hold to dense algebra."""
    model, X, y = fitted(name)
    kernel = model.kernels_[0] if hasattr(model, "kernels_") else model.kernel_
    inputs = X
    if "DKL" in name:
        # Their kernel acts on standardised columns, and has no noise.
        inputs = (X - model._scaling.x_mean) / model._scaling.x_scale
        kernel = kernel + WhiteKernel(model.noise_variance_)
    reference = IterativeGPRegressor(kernel, optimizer=None, normalize_y=True).fit(inputs, y)
    for found, expected in zip(
        model.predict(X[:20], return_std=True),
        reference.predict(inputs[:20], return_std=True),
        strict=True,
    ):
        # The jitter of inducing points is seen in their sixth digit.
        assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SOME)
def test_a_refit_answers_by_what_it_was_asked_for(name):
    """Nothing of the exact process is left after a fit by the method, nor the other way around."""
    (X, y), settings = table(ROWS.get(name, 60)), {"optimizer": None}
    model = unfitted(name, **settings).fit(X, y)
    for choice in ("method", "exact"):
        fresh = unfitted(name, small_table=choice, **settings).fit(X, y)
        again = model.set_params(small_table=choice).fit(X, y)
        for found, expected in zip(
            again.predict(X[:9], return_std=True),
            fresh.predict(X[:9], return_std=True),
            strict=True,
        ):
            assert_allclose(found, expected, rtol=1e-12)
        assert again.fit_report_.summary == fresh.fit_report_.summary
