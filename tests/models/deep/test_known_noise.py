"""Deep kernels whose rows have known noise, against dense algebra in double precision."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct

from skscalablegp import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor

ALL = [SCGDDKLRegressor, MinimaxDKLRegressor, BSGDDKLRegressor]
FIXED = ConstantKernel(0.5, "fixed") * DotProduct(1.0, "fixed")


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    known = 10 ** rng.uniform(-3, 0.5, n)
    y = X @ [1.0, -2.0, 0.5] + np.sqrt(0.05 + known) * rng.standard_normal(n)
    return X, y, known


def dense(model, X, y, known):
    """The target in the model's units, the features, and H but for the learned noise."""
    std = model._y_train_std[0]
    Z = model.extract_features(X)
    return (y - model._y_train_mean[0]) / std, Z, model.kernel_(Z) + np.diag(known / std**2)


def check_exact(model, X, y, known):
    """Predictions and likelihood are those of the dense process at the model's own noise."""
    target, Z, H = dense(model, X, y, known)
    H = H + model.noise_variance_ * np.eye(len(X))
    X_new = table(8, 1)[0]
    Z_new, std = model.extract_features(X_new), model._y_train_std[0]
    cross = model.kernel_(Z_new, Z)
    mean, covariance = model.predict(X_new, return_cov=True, noise_variance=0.2)
    expected = model._y_train_mean[0] + std * cross @ np.linalg.solve(H, target)
    assert_allclose(mean, expected, atol=1e-6 * std)
    latent = model.kernel_(Z_new) - cross @ np.linalg.solve(H, cross.T)
    noise = (model.noise_variance_ * std**2 + 0.2) * np.eye(8)
    assert_allclose(covariance, std**2 * latent + noise, atol=1e-6 * std**2)
    value = multivariate_normal(cov=H).logpdf(target)
    assert_allclose(model.log_marginal_likelihood(), value, rtol=1e-7)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_posterior_is_exact(cls, early_stopping):
    X, y, known = table()
    model = cls(
        feature_extractor=(6,), max_epochs=3, early_stopping=early_stopping, random_state=0
    ).fit(X, y, noise_variance=known)
    check_exact(model, X, y, known)
    more = table(60, 2)
    model.partial_fit(more[0], more[1], noise_variance=more[2])
    X, y, known = (np.concatenate(pair) for pair in zip((X, y, known), more, strict=True))
    check_exact(model, X, y, known)
    # Noise that later rows lack is not forgotten, and none is made up for them.
    model.partial_fit(more[0], more[1])
    rows = np.concatenate([X, more[0]]), np.concatenate([y, more[1]])
    check_exact(model, *rows, np.concatenate([known, np.zeros(60)]))


def test_the_learned_noise_is_the_most_likely_beside_the_known():
    X, y, known = table()
    model = SCGDDKLRegressor(
        FIXED, feature_extractor=None, max_epochs=2, early_stopping=False, random_state=0
    ).fit(X, y, noise_variance=known)
    target, _, H = dense(model, X, y, known)

    def loss(g):
        return -multivariate_normal(cov=H + np.exp(g) * np.eye(len(X))).logpdf(target)

    best = minimize_scalar(loss, bounds=(np.log(1e-4), 2), method="bounded")
    assert_allclose(np.log(model.noise_variance_), best.x, atol=0.05)


def test_a_full_batch_has_the_gradient_of_the_likelihood():
    X, y, known = table(40)
    seen = []

    class Recorder(torch.optim.Adam):
        def step(self, closure=None):
            (log_noise,) = self.param_groups[0]["params"]
            seen.append((float(log_noise.detach()), float(log_noise.grad)))

    for cls in ALL:
        seen.clear()
        model = cls(
            FIXED, feature_extractor=None, max_epochs=1, batch_size=40, early_stopping=False,
            random_state=0, optimizer=Recorder, dtype="float64",
        ).fit(X, y, noise_variance=known)  # fmt: skip
        target, _, H = dense(model, X, y, known)

        def loss(g, H=H, target=target):
            value = multivariate_normal(cov=H + np.exp(g) * np.eye(40)).logpdf(target)
            return -2 * value / 40

        # An exact pass has just put the noise near its optimum, and the estimators' state on it.
        at, slope = seen[0]
        expected = (loss(at + 1e-4) - loss(at - 1e-4)) / 2e-4
        assert_allclose(slope, expected, atol=1e-3)


def test_equal_known_noise_is_part_of_the_learned():
    X, y, _ = table(150)
    settings = dict(feature_extractor=None, max_epochs=2, early_stopping=False, random_state=0)
    plain = SCGDDKLRegressor(FIXED, **settings).fit(X, y)
    known = 0.3 * plain.noise_variance_ * plain._y_train_std[0] ** 2
    told = SCGDDKLRegressor(FIXED, **settings).fit(X, y, noise_variance=known)
    assert_allclose(told.noise_variance_, 0.7 * plain.noise_variance_, rtol=0.05)
    assert_allclose(told.predict(X), plain.predict(X), atol=0.01)
    assert_allclose(told.predict_std(X, noise_variance=known), plain.predict_std(X), rtol=0.02)


def test_targets_under_known_noise_share_a_scale():
    X, y, known = table()
    Y = np.column_stack([y, 3 * y])
    settings = dict(feature_extractor=(4,), max_epochs=1, random_state=0)
    model = SCGDDKLRegressor(**settings).fit(X, Y, noise_variance=known)
    assert len(set(model._y_train_std)) == 1
    with pytest.raises(ValueError, match="2 different scales"):
        SCGDDKLRegressor(normalize_y=True, **settings).fit(X, Y, noise_variance=known)
