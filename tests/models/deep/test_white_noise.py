"""Deep kernels with a WhiteKernel mean what other estimators mean, against dense algebra."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from skscalablegp import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor

ALL = [SCGDDKLRegressor, MinimaxDKLRegressor, BSGDDKLRegressor]
FIRST_QUICK = [ALL[0], *(pytest.param(cls, marks=pytest.mark.slow) for cls in ALL[1:])]
C, D, W = ConstantKernel, DotProduct, WhiteKernel
KERNELS = [
    C() * D() + W(),
    W(0.3, (0.2, 0.4)) + D(),
    C() * (D() + W(0.2)),
    D() + W(0.3, "fixed"),
    C() * (D() + W(0.2, "fixed")),
    C() * D() + W(0.2) + W(0.1, "fixed"),
]


def table(n=90, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, 4 * (X @ [1.0, -2.0, 0.5]) + rng.standard_normal(n) + 7


def fitted(cls, kernel, X, y, noise_variance=None, **settings):
    settings = {"feature_extractor": (6,), "max_epochs": 3, "random_state": 0, **settings}
    return cls(kernel, **settings).fit(X, y, noise_variance=noise_variance)


def check_dense(model, X, y, known=0.0):
    """Predictions and likelihood are those of `kernel_`, white noise included, and nothing else."""
    mean, std = model._y_train_mean[0], model._y_train_std[0]
    Z, X_new = model.extract_features(X), table(8, 1)[0]
    Z_new, target = model.extract_features(X_new), (y - mean) / std
    H = model.kernel_(Z) + np.diag(np.broadcast_to(known / std**2, len(X)))
    cross = model.kernel_(Z_new, Z)
    predicted, covariance = model.predict(X_new, return_cov=True)
    assert_allclose(predicted, mean + std * cross @ np.linalg.solve(H, target), atol=1e-6 * std)
    expected = model.kernel_(Z_new) - cross @ np.linalg.solve(H, cross.T)
    assert_allclose(covariance, std**2 * expected, atol=1e-6 * std**2)
    dense = multivariate_normal(cov=H).logpdf(target)
    assert_allclose(model.log_marginal_likelihood(), dense, rtol=1e-7)
    white = model.kernel_(Z[:1])[0, 0] - model.kernel_(Z[:1], Z[:1])[0, 0]
    assert_allclose(model.noise_variance_, white, rtol=1e-9)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("held_out", [False, True])
def test_the_posterior_is_that_of_the_kernel(cls, kernel, held_out):
    X, y = table()
    model = fitted(cls, kernel, X, y, early_stopping=held_out)
    check_dense(model, X, y)
    assert str(type(model.kernel_)) == str(type(kernel))
    assert (model.kernel_.theta >= model.kernel_.bounds[:, 0] - 1e-9).all()
    assert (model.kernel_.theta <= model.kernel_.bounds[:, 1] + 1e-9).all()
    assert len(model.history_["theta"][-1]) == len(model.kernel_.theta)
    more = table(40, 2)
    model.partial_fit(*more)
    check_dense(model, *(np.concatenate(pair) for pair in zip((X, y), more, strict=True)))


@pytest.mark.parametrize("cls", FIRST_QUICK)
def test_a_white_kernel_is_the_noise_that_is_learned_without_one(cls):
    X, y = table(300)
    plain = fitted(cls, C() * D(), X, y)
    white = fitted(cls, C() * D() + W(0.1, (1e-4, 1e3)), X, y)
    assert_allclose(white.predict(X), plain.predict(X), rtol=1e-9)
    assert_allclose(white.predict_std(X), plain.predict_std(X), rtol=1e-9)
    assert_allclose(white.kernel_.k2.noise_level, plain.noise_variance_, rtol=1e-9)
    assert_allclose(white.kernel_.k1.theta, plain.kernel_.theta, atol=1e-9)
    assert "min_noise" in white.fit_report_.ignored
    assert "min_noise" not in plain.fit_report_.ignored
    latent = white.predict_std(X, include_noise=False)
    noise = white.noise_variance_ * white._y_train_std[0] ** 2
    assert_allclose(white.predict_std(X) ** 2 - latent**2, noise, rtol=1e-7)


@pytest.mark.parametrize("cls", FIRST_QUICK)
def test_random_features_with_white_noise_learn_the_function_and_the_noise(cls):
    X, y = table(400)
    kernel = C() * RBF() + W()
    model = fitted(cls, kernel, X, y, n_components=200, max_epochs=20)
    assert model.score(*table(200, 3)) > 0.8
    assert_allclose(model.noise_variance_ * model._y_train_std[0] ** 2, 1.0, rtol=0.35)
    assert model.kernel_.k2.noise_level == pytest.approx(model.noise_variance_)


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[2], KERNELS[5]], ids=str)
def test_known_noise_is_beside_the_white_one(kernel):
    X, y = table()
    known = np.linspace(0.01, 3.0, len(X))
    check_dense(fitted(SCGDDKLRegressor, kernel, X, y, known), X, y, known)


def test_an_exact_pass_finds_the_most_likely_noise():
    X, y = table(150)
    kernel = C(0.5, "fixed") * (D(1.0, "fixed") + W(0.2))
    model = fitted(SCGDDKLRegressor, kernel, X, y, feature_extractor=None, early_stopping=False)
    Z, target = model.extract_features(X), (y - y.mean()) / y.std()
    smooth = 0.5 * D()(Z)

    def loss(log_noise):
        return -multivariate_normal(cov=smooth + np.exp(log_noise) * np.eye(150)).logpdf(target)

    best = minimize_scalar(loss, bounds=(-6, 2), method="bounded").x
    assert_allclose(np.log(model.noise_variance_), best, atol=0.01)


@pytest.mark.parametrize("cls", ALL)
def test_noise_that_follows_from_a_constant_is_part_of_its_gradient(cls):
    X, y = table(40)
    seen = []

    class Recorder(torch.optim.Adam):
        def step(self, closure=None):
            (theta,) = self.param_groups[0]["params"]
            seen.append((float(theta.detach()[0]), float(theta.grad[0])))

    kernel = C(0.5) * (D(1.0, "fixed") + W(0.2, "fixed"))
    model = fitted(
        cls, kernel, X, y, feature_extractor=None, max_epochs=1, batch_size=40,
        early_stopping=False, optimizer=Recorder, dtype="float64",
    )  # fmt: skip
    Z, target = model.extract_features(X), (y - y.mean()) / y.std()
    unscaled = D()(Z) + 0.2 * np.eye(40)

    def loss(log_constant):
        cov = np.exp(log_constant) * unscaled
        return -2 * multivariate_normal(cov=cov).logpdf(target) / 40

    at, slope = seen[0]
    assert_allclose(slope, (loss(at + 1e-4) - loss(at - 1e-4)) / 2e-4, rtol=1e-4)


def test_without_an_optimizer_the_white_noise_stays():
    X, y = table()
    kernel = C(0.5) * D() + W(0.7)
    model = fitted(SCGDDKLRegressor, kernel, X, y, optimizer=None)
    assert_allclose(model.kernel_.theta, kernel.theta, atol=1e-9)
    check_dense(model, X, y)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    "kernel, message",
    [(D() * (C() + W()), "differs between rows"), (W(), "noise alone")],
    ids=["scaled by rows", "alone"],
)
def test_noise_that_features_cannot_have(cls, kernel, message):
    with pytest.raises(ValueError, match=message):
        fitted(cls, kernel, *table())
