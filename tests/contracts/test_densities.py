"""Log predictive densities of single rows against SciPy, and what means must not compute."""

import numpy as np
import pytest
from contracts.test_contract import ROWS
from export.exported import MODELS, NEW, X, Y, fitted
from scipy import integrate, stats
from sklearn.base import is_classifier

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.meta import Tails

TARGETS = Y[: len(NEW)] + 3


def test_heavy_tails():
    """A normal latent function plus Student's t noise, by SciPy's quadrature."""
    model = fitted("student")
    process = fitted_process(model)
    mean, latent, noise = (part[:, 0] for part in process.moments(NEW))
    found = model.log_predictive_density(NEW, TARGETS)
    for i in range(0, len(NEW), 5):
        scale, std = (noise[i] / 2) ** 0.5, latent[i] ** 0.5

        def both(f, i=i, scale=scale, std=std):
            return stats.t.pdf(TARGETS[i], 4, f, scale) * stats.norm.pdf(f, mean[i], std)

        ends = mean[i] - 9 * std, mean[i] + 9 * std
        near = np.clip(TARGETS[i], *ends)
        right = integrate.quad(both, *ends, points=[mean[i], near], limit=500)[0]
        assert abs(found[i] - np.log(right)) < 1e-5


def test_densities_add_up_to_one_under_fitted_tails():
    rng = np.random.RandomState(0)
    z = stats.t.rvs(3, size=400, random_state=rng)
    grid = np.linspace(-60, 60, 400_001)
    for name in ("student", "empirical"):
        tails = Tails.of(name, z)
        density = np.exp(tails.log_density(grid))
        total = np.cumsum(density) * (grid[1] - grid[0])
        assert abs(total[-1] - 1) < 1e-3
        at = np.array([-1.5, -0.3, 0.4, 2.0])
        places = np.searchsorted(grid, tails(at))
        np.testing.assert_allclose(total[places], stats.norm.cdf(at), atol=2e-3)


def test_classes():
    labels = np.where(X[:, 0] > 0, "b", "a")
    model = sk.SVGPClassifier(n_inducing=10, max_iter=10, random_state=0).fit(X, labels)
    given = np.where(np.arange(len(NEW)) % 2, "a", "b")
    p = model.predict_proba(NEW)
    right = np.log(np.where(given == "a", p[:, 0], p[:, 1]))
    np.testing.assert_allclose(model.log_predictive_density(NEW, given), right)
    with pytest.raises(ValueError, match="one class for each row"):
        model.log_predictive_density(NEW, given[:3])
    with pytest.raises(ValueError, match="labels"):
        model.log_predictive_density(NEW, np.full(len(NEW), "c"))


@pytest.mark.parametrize("y", [TARGETS[:5], np.column_stack([TARGETS, TARGETS])])
def test_targets_of_another_shape(y):
    with pytest.raises(ValueError, match="one value for each row"):
        fitted("features").log_predictive_density(NEW, y)


# ------------------------------------------------------------------ means alone

# A product of experts and nearest neighbours have a mean that is made of variances; others predict
# through members.
CHEAP = sorted(set(MODELS) - {"experts", "nearest-experts", "committee", "neighbours"})


@pytest.mark.parametrize("name", CHEAP)
def test_means_compute_no_variances(name, monkeypatch):
    model = fitted(name)
    posterior = fitted_process(model).posterior
    calls = []
    for kind in type(posterior).__mro__:
        for method in ("moments", "variance", "covariance", "latent_moments"):
            if method in vars(kind):
                old = vars(kind)[method]
                monkeypatch.setattr(kind, method, counted(calls, method, old))
    model.predict(NEW)
    assert not calls
    model.predict(NEW, return_std=True)
    assert calls


def counted(calls, name, method):
    def call(*args, **kwargs):
        calls.append(name)
        return method(*args, **kwargs)

    return call


def test_every_estimator_has_log_densities():
    for row in ROWS:
        assert callable(row.estimator.log_predictive_density), row.name
        assert is_classifier(row.estimator) or callable(row.estimator.predict_quantiles)
