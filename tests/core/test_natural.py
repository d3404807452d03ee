"""Natural steps on quadratics with known noise: where they end, and why."""

import inspect

import numpy as np
import pytest
from sklearn.base import is_classifier

import skscalablegp as sk
from skscalablegp.training import NaturalGradient

WIDE = np.array([[-8.0, 8.0]] * 3)
PEAK = np.array([1.0, -2.0, 0.5])
F = np.array([[40.0, 30.0, 0.0], [30.0, 60.0, 0.0], [0.0, 0.0, 5.0]])


class Objective:
    """-1/2 (theta - PEAK)' F (theta - PEAK), its slope with noise that may be frozen."""

    def __init__(self, noise=0.0, frozen=False, curvature=1.0, seed=0):
        self.rng = np.random.default_rng(seed)
        self.noise, self.frozen, self.curvature = noise, frozen, curvature
        self.drawn, self.n, self.redraws = None, 0, 0

    def __call__(self, theta):
        self.n += 1
        if self.drawn is None or not self.frozen:
            self.drawn = np.linalg.cholesky(F) @ self.rng.standard_normal(3) * self.noise
        return np.nan, self.curvature * F @ (PEAK - theta) + self.drawn

    def redraw(self):
        self.redraws += 1
        self.drawn = None

    def information(self, theta, n_rows):
        return F

    def lost(self, theta):
        return 0.5 * self.curvature * float((theta - PEAK) @ F @ (theta - PEAK))


@pytest.mark.parametrize("curvature", [0.2, 1.0, 1.8])
def test_without_noise_a_few_steps_find_the_peak(curvature):
    objective = Objective(curvature=curvature)
    optimum = NaturalGradient(0.5).maximize(objective, np.zeros(3), WIDE, 60)
    assert optimum.reason == "converged" and objective.lost(optimum.theta) < 0.5
    assert objective.n < 30


@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_noise_is_averaged_until_it_costs_less_than_the_tolerance(frozen):
    lost, steps = [], []
    for seed in range(10):
        objective = Objective(noise=3.0, frozen=frozen, seed=seed)
        optimum = NaturalGradient(0.5).maximize(objective, np.zeros(3), WIDE, 500)
        assert optimum.reason == "converged" and objective.redraws > 10
        lost.append(objective.lost(optimum.theta))
        steps.append(objective.n)
    # A single gradient errs by 13 nats.
    assert np.mean(lost) < 1.0
    louder = Objective(noise=6.0)
    NaturalGradient(0.5).maximize(louder, np.zeros(3), WIDE, 2000)
    assert louder.n > 2 * np.mean(steps)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_ridges_are_walked_to_their_end(noise):
    """A curvature of a twentieth of the expected one along one direction, 15 nats down its slope.

    With the expected information alone these steps ended 2 nats below the peak with 41 gradients
    of a tenth of this noise, and 3 to 5 with 90.
    """
    p, lost, steps = 12, [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        Q, values = np.linalg.qr(rng.standard_normal((p, p)))[0], np.exp(rng.uniform(0, 6, p))
        share = np.where(np.arange(p) == 0, 0.05, 1.0)
        place = rng.standard_normal(p)
        place[0] = (2 * 15 / (0.05 * values[0])) ** 0.5

        class Ridge(Objective):
            def __call__(self, theta, rng=rng, Q=Q, values=values, share=share):
                self.n += 1
                drawn = noise * values**0.5 * rng.standard_normal(p)
                return np.nan, Q @ (drawn - share * values * (Q.T @ theta))

            def information(self, theta, n_rows, Q=Q, values=values):
                return Q * values @ Q.T

        objective = Ridge()
        wide = np.array([[-90.0, 90.0]] * p)
        theta = NaturalGradient(0.5).maximize(objective, Q @ place, wide, 200).theta
        lost.append(0.5 * float(share * values @ np.square(Q.T @ theta)))
        steps.append(objective.n)
    assert np.mean(lost) < 1.5 and np.mean(steps) < 80


def test_steps_stay_within_bounds_and_are_never_longer_than_one():
    bounds, seen = np.array([[-8.0, 0.2], [-0.5, 8.0], [-8.0, 8.0]]), []
    objective = Objective()

    class Watched(Objective):
        def __call__(self, theta):
            seen.append(theta.copy())
            return super().__call__(theta)

    optimum = NaturalGradient(0.01).maximize(Watched(), np.full(3, -0.4), bounds, 60)
    seen = np.array(seen)
    assert (seen >= bounds[:, 0]).all() and (seen <= bounds[:, 1]).all()
    assert np.abs(np.diff(seen, axis=0)).max() <= 1 + 1e-12
    # On the bound of the second variable the first is at its own optimum.
    np.testing.assert_allclose(optimum.theta, [-0.125, -0.5, 0.5], atol=0.05)
    assert objective.n == 0


def test_budgets_end_it():
    objective = Objective(noise=50.0)
    optimum = NaturalGradient(0.5).maximize(objective, np.zeros(3), WIDE, 7)
    assert optimum.reason == "max_iter" and objective.n == 7


WITH_OPTIMIZERS = [
    name
    for name in sk.__all__
    if inspect.isclass(getattr(sk, name)) and hasattr(getattr(sk, name)(), "optimizer")
]


@pytest.mark.parametrize("name", WITH_OPTIMIZERS)
def test_models_without_rows_of_a_kernel_matrix_refuse_natural_steps(name):
    model = getattr(sk, name)(optimizer="natural", random_state=0)
    X = np.random.default_rng(0).normal(size=(20, 1))
    if name in ("IterativeGPRegressor", "RRCGRegressor"):
        model.set_params(max_iter=2).fit(X, X[:, 0])
        assert model.n_iter_ > 0
    else:
        with pytest.raises(ValueError, match="optimizer"):
            model.fit(X, X[:, 0] > 0 if is_classifier(model) else X[:, 0])
