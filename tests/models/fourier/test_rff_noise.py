"""The noise of random features: before the first step, and where training ends early."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from oracles import generator, normal
from scipy.optimize import minimize_scalar
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from skscalablegp import RFFRegressor
from skscalablegp.core.training import StopTraining
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.models.fourier._collapsed import FeatureSums, all_rows
from skscalablegp.models.fourier._noise import NoiseSpectrum, starting_noise, suited_noise
from skscalablegp.priors import LogNormal
from skscalablegp.solvers import End
from skscalablegp.training import Adam, QuasiNewton

C, W = ConstantKernel, WhiteKernel
KERNEL = C(1.3) * RBF([0.8, 1.4]) + DotProduct(0.3) + W(1e-3)
N, FEW, MANY = 40, 4, 30


def problem(kernel=KERNEL, t=1, known=0.0, **more):
    X = normal(N, 2, seed=5)
    Y = torch.sin(3 * X[:, :1] * X[:, 1:]) + 0.3 * normal(N, t, seed=6)
    return GPProblem(compile_kernel(kernel, 2, **more), Rows.of(X, Y, known))


def drawn(ours, n_pairs):
    return sample_prior_features(ours.kernel, 2, n_pairs, generator(3))


def dense(ours, theta, features):
    """The log density of the targets by dense algebra, plus the log prior."""
    phi = features.evaluate(theta, ours.X)
    noise = ours.kernel.noise(theta, ours.X)
    noise = noise + ours.rows.noise
    normal_ = torch.distributions.MultivariateNormal(
        torch.zeros(len(phi), dtype=phi.dtype), phi @ phi.T + torch.diag(noise)
    )
    return float(normal_.log_prob(ours.Y.T).sum()) + ours.kernel.log_prior(theta.numpy())[0]


def best(ours, theta, features, low=-12.0, high=3.0):
    """The logarithm of the noise, the last entry, with the highest dense value."""

    def loss(level):
        return -dense(ours, torch.cat([theta[:-1], torch.tensor([level]).double()]), features)

    near = min(np.linspace(low, high, 151), key=loss)
    bounds = max(low, near - 0.1), min(high, near + 0.1)
    return minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7}).x


# ---------------------------------------------------------------- the likelihood of all noise


@pytest.mark.parametrize("n_pairs", [FEW, MANY])
@pytest.mark.parametrize("level", [1e-3, 0.2, 30.0])
def test_one_decomposition_gives_the_likelihood_of_all_noise(n_pairs, level):
    known = np.linspace(0.5, 2.0, N)
    ours = problem(KERNEL, 2, known)
    theta, features = ours.kernel.theta0, drawn(ours, n_pairs)
    if n_pairs == FEW:
        spectrum = NoiseSpectrum.of_sums(FeatureSums.of(ours, theta, features), 0.7)
    else:
        spectrum = NoiseSpectrum.of_rows(*all_rows(ours, theta, features), 0.7)
    # The noise of all rows is multiplied by a common factor.
    phi, noise = features.evaluate(theta, ours.X), (torch.as_tensor(known) + 1e-3) * level / 0.7
    normal_ = torch.distributions.MultivariateNormal(
        torch.zeros(N).double(), phi @ phi.T + torch.diag(noise)
    )
    expected = float(normal_.log_prob(ours.Y.T).sum())
    assert spectrum.log_likelihood(level) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("n_pairs", [FEW, MANY])
@pytest.mark.parametrize("known", [0.0, 0.05])
@pytest.mark.parametrize("prior", [False, True])
def test_noise_maximises_the_dense_likelihood(t, n_pairs, known, prior):
    name = "k2__noise_level"
    priors = {"priors": {name: LogNormal(1e-2, 0.2)}} if prior else {}
    ours = problem(KERNEL, t, None if known is None else np.full(N, known), **priors)
    theta, features = ours.kernel.theta0, drawn(ours, n_pairs)
    found, sums = suited_noise(ours, theta, features)
    expected = best(ours, theta, features)
    assert abs(expected - float(theta[-1])) > 0.5
    assert_allclose(found[-1], expected, atol=1e-4)
    assert_array_equal(found[:-1], theta[:-1])
    assert (sums is None) == (n_pairs == MANY)
    if sums is not None:
        again = FeatureSums.of(ours, found, features)
        for part in ("gram", "projected", "squares", "log_noise"):
            torch.testing.assert_close(getattr(sums, part), getattr(again, part))
    assert_array_equal(starting_noise(ours, theta, features), found)


@pytest.mark.parametrize("n_pairs", [FEW, MANY])
def test_merged_rows_have_the_noise_of_the_rows_that_they_stand_for(n_pairs):
    counts = torch.tensor([1.0, 3.0] * (N // 2), dtype=torch.float64)
    ours = problem()
    rows = torch.repeat_interleave(torch.arange(N), counts.long())
    Y = ours.Y[rows] + 0.1 * normal(len(rows), 1, seed=9)
    whole = GPProblem(ours.kernel, Rows.of(ours.X[rows], Y))
    members = [whole.Y[rows == k] for k in range(N)]
    means = torch.stack([own.mean(0) for own in members])
    within = torch.stack([(own - own.mean(0)).square().sum() for own in members])
    merged = GPProblem(ours.kernel, Rows.of(ours.X, means, 0.0, counts, within))
    theta, features = ours.kernel.theta0, drawn(ours, n_pairs)
    expected = best(whole, theta, features)
    assert_allclose(suited_noise(merged, theta, features)[0][-1], expected, atol=1e-4)


def test_noise_stays_within_its_bounds():
    ours = problem(C(1.3) * RBF(0.8) + W(0.01, (5e-3, 0.02)))
    theta, features = ours.kernel.theta0, drawn(ours, FEW)
    assert best(ours, theta, features) > np.log(0.02)
    found = suited_noise(ours, theta, features)[0]
    assert float(found[-1].exp()) == pytest.approx(0.02)
    assert_array_equal(found[:-1], theta[:-1])
    # Of two noise levels, one reaches its bound before the other is large enough.
    ours = problem(C(1.3) * RBF(0.8) + W(0.01, (5e-3, 0.02)) + W(0.01))
    theta = ours.kernel.theta0
    found = suited_noise(ours, theta, features)[0]
    assert float(found[-2].exp()) == pytest.approx(0.02)
    assert_allclose(found[-1], best(ours, found, features), atol=1e-4)


def test_only_free_noise_changes():
    ours = problem(C(1.3) * RBF(0.8) + W(0.01, "fixed"))
    theta, features = ours.kernel.theta0, drawn(ours, FEW)
    found, sums = suited_noise(ours, theta, features)
    assert_array_equal(found, theta)
    assert sums is None
    assert_array_equal(starting_noise(ours, theta, features), theta)
    ours = problem(C(1.3) * RBF(0.8) + W(0.05, "fixed") + W(1e-3))
    theta = ours.kernel.theta0
    found = suited_noise(ours, theta, features)[0]
    assert_allclose(found[-1], best(ours, theta, features), atol=1e-4)


@pytest.mark.parametrize("n_pairs", [FEW, MANY])
def test_known_noise_of_single_rows_counts_in_the_start(n_pairs):
    ours = problem(known=np.geomspace(1e-3, 1.0, N))
    theta, features = ours.kernel.theta0, drawn(ours, n_pairs)
    assert_array_equal(suited_noise(ours, theta, features)[0], theta)
    found = starting_noise(ours, theta, features)
    assert_allclose(found[-1], best(ours, theta, features), atol=0.05)
    assert_array_equal(found[:-1], theta[:-1])


# ---------------------------------------------------------------- fits that end early


def table(n=400, t=1):
    """Rows of a function that a few features cannot follow."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(4 * X[:, :1]) * np.cos(3 * X[:, 1:]) + 0.1 * rng.standard_normal((n, t))
    return X, y if t > 1 else y[:, 0]


def second_step(then):
    return lambda step: then() if step.iteration == 2 else False


def stop():
    raise KeyboardInterrupt


ENDS = {
    "max_iter": {"max_iter": 1},
    "more steps": {"max_iter": 3},
    "adam": {"max_iter": 3, "optimizer": Adam(0.3)},
    "callback": {"callbacks": second_step(lambda: True)},
    "interrupted": {"callbacks": second_step(stop)},
    "known noise": {"max_iter": 2, "alpha": 0.02},
    "many features": {"max_iter": 2, "n_components": 500},
}


def assert_suits(model):
    """No other noise has a higher likelihood, all else being equal."""
    theta = model.kernel_.theta
    value = model.log_marginal_likelihood(theta)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-9)
    shifts = np.concatenate([np.linspace(-6, 3, 40), [-0.02, 0.02]])
    others = [model.log_marginal_likelihood([*theta[:-1], theta[-1] + s]) for s in shifts]
    assert value >= max(others)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("t", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", ENDS)
def test_noise_suits_wherever_training_ends(end, t):
    X, y = table(t=t)
    model = RFFRegressor(**{"n_components": 20, "random_state": 0} | ENDS[end]).fit(X, y)
    assert model.fit_report_.status != "converged"
    assert_suits(model)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_noise_suits_without_a_step(stand_in):
    def too_late(*args):
        raise StopTraining(End.MAX_SECONDS)

    stand_in("starting_noise", too_late)
    X, y = table()
    model = RFFRegressor(n_components=20, random_state=0, max_seconds=600).fit(X, y)
    assert model.fit_report_.status == "max_seconds" and model.n_iter_ == 0
    assert_suits(model)


def test_a_model_of_a_step_has_the_noise_of_a_fit_that_ends_there():
    X, y = table()
    shown = []

    def show(step):
        shown.append(step.model())
        return len(shown) == 2

    model = RFFRegressor(n_components=20, random_state=0, callbacks=show).fit(X, y)
    assert model.fit_report_.status == "callback"
    for one in shown:
        assert_suits(one)
    assert any(np.array_equal(one.kernel_.theta, model.kernel_.theta) for one in shown)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_intervals_of_a_fit_that_ends_after_a_step_cover_new_rows():
    X, y = table(1400)
    model = RFFRegressor(n_components=20, max_iter=1, random_state=0).fit(X[:400], y[:400])
    mean, std = model.predict(X[400:], return_std=True)
    assert 0.93 < np.mean(np.abs(y[400:] - mean) < 1.96 * std) < 0.97


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_first_step_has_the_noise_that_suits():
    X, y = table()
    settings = {"n_components": 20, "max_iter": 1, "random_state": 0}
    model = RFFRegressor(**settings).fit(X, y)
    assert_allclose(model.history_["theta"][0][-1], model.kernel_.theta[-1], atol=1e-4)
    # An optimiser may begin where it is told.
    kernel = C(1.0) * RBF([1.0, 1.0]) + W(1e-3)
    begins = QuasiNewton(compare_starts=False)
    model = RFFRegressor(kernel, optimizer=begins, **settings).fit(X, y)
    assert_array_equal(model.history_["theta"][0], kernel.theta)
    assert_suits(model)


def test_noise_is_that_of_training_where_this_has_converged():
    X, y = table()
    model = RFFRegressor(n_components=20, random_state=0).fit(X, y)
    assert model.fit_report_.status == "converged"
    nearest = min(abs(model.kernel_.theta - theta).max() for theta in model.history_["theta"])
    assert nearest < 1e-10
    kernel = C(1.0) * RBF(1.0) + W(1e-3)
    kept = RFFRegressor(kernel, n_components=20, optimizer=None, random_state=0).fit(X, y)
    assert_array_equal(kept.kernel_.theta, kernel.theta)
