"""Optimisers on functions whose maximum is known."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.base import clone

import skscalablegp
from skscalablegp.core.training import OPTIMIZERS, AdamOfGroups, TensorAdam, resolve_optimizer
from skscalablegp.training import LBFGS, Adam, QuasiNewton

WIDE = np.array([[-5.0, 5.0]] * 3)
PEAK = np.array([1.0, -2.0, 0.5])
CURVATURE = np.array([1.0, 10.0, 0.1])


def quadratic(theta):
    return -0.5 * float(CURVATURE @ (theta - PEAK) ** 2), CURVATURE * (PEAK - theta)


def recorded(function, seen):
    def evaluate(theta):
        seen.append(theta.copy())
        return function(theta)

    return evaluate


def sklearn_style(obj_func, initial_theta, bounds):
    result = scipy.optimize.minimize(
        obj_func, initial_theta, jac=True, bounds=bounds, method="L-BFGS-B"
    )
    return result.x, result.fun


OPTIMISERS = {
    "adam": (Adam(0.1, decay=0.01), 500),
    "adam-softplus": (Adam(0.1, decay=0.01, transform="softplus"), 1000),
    "lbfgs": (LBFGS(1e-12), 100),
    "bfgs": (QuasiNewton(1e-12), 100),
    "callable": (resolve_optimizer(sklearn_style), 100),
}


@pytest.mark.parametrize(("optimizer", "steps"), OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_finds_the_maximum(optimizer, steps):
    start = np.zeros(3)
    theta = optimizer.maximize(quadratic, start, WIDE, steps).theta
    np.testing.assert_allclose(theta, PEAK, atol=1e-2)
    assert np.array_equal(start, np.zeros(3))


@pytest.mark.parametrize(("optimizer", "steps"), OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_never_leaves_the_bounds(optimizer, steps):
    bounds, seen = np.array([[-1.0, 0.5], [-0.3, 0.3], [0.1, 0.2]]), []
    start = np.array([0.0, 0.0, 0.15])
    theta = optimizer.maximize(recorded(quadratic, seen), start, bounds, steps).theta
    for point in [theta, *seen]:
        assert (point >= bounds[:, 0]).all() and (point <= bounds[:, 1]).all()
    np.testing.assert_allclose(theta, [0.5, -0.3, 0.2], atol=1e-6)


def test_adam_takes_steps_of_its_rate_that_decay():
    seen = []
    optimum = Adam(0.2, decay=0.25).maximize(
        recorded(lambda theta: (np.nan, np.full(3, -7.0)), seen), np.zeros(3), WIDE, 5
    )
    assert optimum.metric is None
    steps = -np.diff([*seen, optimum.theta], axis=0)
    np.testing.assert_allclose(steps[:, 0], 0.2 * 0.25 ** (np.arange(5) / 4), rtol=1e-6)
    assert len(seen) == 5


def test_adam_can_change_what_softplus_makes_positive():
    """The same path as torch's Adam on u, the hyperparameter being softplus(u)."""
    start, seen = np.array([-7.0, 0.3, 3.0]), []
    adam = Adam(0.1, transform="softplus")
    adam.maximize(recorded(quadratic, seen), start, np.array([[-9.0, 9.0]] * 3), 20)
    u = torch.tensor(start).exp().expm1().log().requires_grad_(True)
    theirs = torch.optim.Adam([u], lr=0.1, eps=1e-12)
    for point in seen:
        theta = torch.nn.functional.softplus(u).log()
        np.testing.assert_allclose(point, theta.detach(), rtol=1e-6, atol=1e-8)
        theirs.zero_grad()
        (torch.tensor(CURVATURE) * (theta - torch.tensor(PEAK)) ** 2).sum().mul(0.5).backward()
        theirs.step()


def test_adam_names_its_transforms():
    with pytest.raises(ValueError, match="softplus"):
        Adam(transform="sqrt").maximize(quadratic, np.zeros(3), WIDE, 1)


def test_adam_stands_still_where_the_gradient_is_zero():
    optimum = Adam().maximize(lambda theta: (0.0, np.zeros(3)), np.ones(3), WIDE, 10)
    np.testing.assert_array_equal(optimum.theta, np.ones(3))


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_lbfgs_first_step_is_short_whatever_the_objective_is_scaled_by(scale):
    seen = []

    def scaled(theta):
        value, grad = quadratic(theta)
        return scale * value, scale * grad

    LBFGS().maximize(recorded(scaled, seen), np.zeros(3), WIDE, 50)
    assert np.abs(seen[1] - seen[0]).max() < 1.0


@pytest.mark.parametrize("optimizer", [Adam(), LBFGS(), QuasiNewton()])
def test_a_single_step_is_enough_to_return(optimizer):
    assert np.isfinite(optimizer.maximize(quadratic, np.zeros(3), WIDE, 1).theta).all()


# ---------------------------------------------------------------- curvature that is carried along


def test_the_inverse_hessian_is_learnt():
    optimum = QuasiNewton(1e-14).maximize(quadratic, np.zeros(3), WIDE, 100)
    np.testing.assert_allclose(optimum.metric, np.diag(1 / CURVATURE), rtol=0.05, atol=0.05)


def test_a_known_inverse_hessian_makes_one_step_enough():
    seen, metric = [], np.diag(1 / CURVATURE)
    before, start = metric.copy(), PEAK + np.array([0.5, -0.4, 0.6])
    optimum = QuasiNewton(gain_tol=1e-9).maximize(
        recorded(quadratic, seen), start, WIDE, 20, metric
    )
    assert len(seen) <= 3
    np.testing.assert_allclose(optimum.theta, PEAK, atol=1e-6)
    np.testing.assert_array_equal(metric, before)


def test_refining_ends_where_less_than_half_a_nat_is_to_be_gained():
    seen, metric = [], np.diag(1 / CURVATURE)
    start = PEAK + np.array([0.9, 0.0, 0.0])  # 0.405 nats
    QuasiNewton().maximize(recorded(quadratic, seen), start, WIDE, 20, metric)
    assert len(seen) == 1
    QuasiNewton().maximize(recorded(quadratic, seen), start + 0.5, WIDE, 20, metric)
    assert len(seen) > 2


def test_a_root_of_the_gradient_is_found_without_values():
    start = PEAK + 0.4
    optimum = QuasiNewton(gain_tol=1e-8).maximize(
        lambda theta: (np.nan, quadratic(theta)[1]), start, WIDE, 50, np.diag(1.3 / CURVATURE)
    )
    np.testing.assert_allclose(optimum.theta, PEAK, atol=1e-3)


def coupled(p, seed=0):
    """A parabola whose variables depend on each other, its inverse Hessian and its peak."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((p, 2 * p)) / np.sqrt(2 * p)
    H, peak = A @ A.T + 0.1 * np.eye(p), rng.uniform(0.1, 0.9, p)

    def parabola(theta):
        return -0.5 * float((theta - peak) @ H @ (theta - peak)), H @ (peak - theta)

    return parabola, np.linalg.inv(H), peak


def test_a_variable_that_reaches_its_bound_does_not_shorten_the_steps_of_others():
    """Each of ten variables meets its bound at another distance; SciPy finds the same peak."""
    parabola, metric, peak = coupled(20)
    bounds, seen = np.array([[-5.0, 5.0]] * 20), []
    bounds[::2, 1] = peak[::2] * np.linspace(0.05, 0.9, 10)
    best = QuasiNewton(1e-9, gain_tol=1e-9).maximize(
        recorded(parabola, seen), np.zeros(20), bounds, 100, metric
    )
    oracle = scipy.optimize.minimize(
        lambda theta: tuple(-part for part in parabola(theta)),
        np.zeros(20),
        jac=True,
        bounds=bounds,
        tol=1e-14,
    )
    np.testing.assert_allclose(best.theta, oracle.x, atol=1e-3)
    assert len(seen) <= 4


def test_a_long_step_stays_on_a_ridge():
    """An amplitude and a length scale grow together: the curvature across the ridge is large."""
    H = 1e4 * np.outer([1, -3], [1, -3]) + 0.01 * np.eye(2)
    seen, far = [], np.array([4.5, 1.5])
    QuasiNewton(gain_tol=1e-9).maximize(
        recorded(lambda t: (-0.5 * float((t - far) @ H @ (t - far)), H @ (far - t)), seen),
        np.zeros(2),
        np.array([[-5.0, 5.0]] * 2),
        30,
        np.linalg.inv(H),
    )
    np.testing.assert_allclose(seen[1], [1.0, 1 / 3], atol=1e-2)
    assert len(seen) <= 7


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_any_curvature_rise_within_the_bounds(seed):
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 9))
    A, scale = rng.standard_normal((p, p)), np.exp(2 * rng.standard_normal(p))
    B = scale[:, None] * (A @ A.T + 1e-3 * np.eye(p)) * scale
    bounds = np.stack([-rng.choice([0, 0.01, 0.5, 5], p), rng.choice([0.01, 0.5, 5], p)], 1)
    grad, seen = np.abs(rng.standard_normal(p)), []
    QuasiNewton(gain_tol=1e-12).maximize(
        recorded(lambda theta: (float(grad @ theta), grad), seen), np.zeros(p), bounds, 2, B
    )
    step = seen[1]
    assert grad @ step > 0
    assert (np.abs(step) <= 1).all()
    assert (step >= bounds[:, 0]).all() and (step <= bounds[:, 1]).all()


def test_a_function_without_negative_curvature_is_climbed_to_the_bounds():
    def convex(theta):
        return 0.5 * float(theta @ theta), theta

    optimum = QuasiNewton().maximize(convex, np.full(3, 0.1), WIDE, 100)
    np.testing.assert_allclose(optimum.theta, WIDE[:, 1])


def misled(theta):
    """Values that fall where the gradient says that they rise, by about 9 nats a unit."""
    return -9.0 * float(np.abs(theta).sum()), np.full(3, 9.0)


@pytest.mark.parametrize("optimizer", [LBFGS(), QuasiNewton()], ids=str)
def test_no_progress_from_the_start_is_no_convergence(optimizer):
    optimum = optimizer.maximize(misled, np.zeros(3), WIDE, 50)
    assert optimum.reason == "stagnated"
    np.testing.assert_array_equal(optimum.theta, np.zeros(3))
    peak = optimizer.maximize(quadratic, PEAK.copy(), WIDE, 50)
    assert peak.reason == "converged"
    cut = optimizer.maximize(quadratic, np.zeros(3), WIDE, 2)
    assert cut.reason == "max_iter"


def test_no_progress_where_little_is_left_to_gain_is_convergence():
    def rounded(theta):
        return -1e-3 * float(np.abs(theta).sum()), np.full(3, 1e-3)

    assert QuasiNewton().maximize(rounded, np.zeros(3), WIDE, 50).reason == "converged"


def test_gradients_that_grow_at_every_step_are_no_convergence():
    """Without values: the steps run away from what there was to gain at the first."""
    growing = iter(100.0 ** np.arange(1, 60))
    optimum = QuasiNewton().maximize(
        lambda theta: (np.nan, np.array([next(growing), 0.0, 0.0])), np.zeros(3), WIDE, 50
    )
    assert optimum.reason == "stagnated"
    np.testing.assert_array_equal(optimum.theta, np.zeros(3))


# ---------------------------------------------------------------- names


def test_names_and_objects_resolve():
    assert isinstance(resolve_optimizer("adam"), Adam)
    assert resolve_optimizer("adam", 0.03).learning_rate == 0.03
    for name in ("lbfgs", "fmin_l_bfgs_b"):
        assert isinstance(resolve_optimizer(name, 0.03), LBFGS)
    own = Adam(0.5)
    assert resolve_optimizer(own, 0.03) is own and own.learning_rate == 0.5
    assert clone(own).set_params(decay=0.5).decay == 0.5


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="Unknown optimizer 'newton'") as error:
        resolve_optimizer("newton")
    for name in OPTIMIZERS:
        assert name in str(error.value)


@pytest.mark.parametrize("end", [[0.0], [0.0, np.nan, 0.0], [[0.0, 0.0, 0.0]]])
def test_a_callable_must_return_a_point(end):
    optimizer = resolve_optimizer(lambda obj_func, initial_theta, bounds: (end, 0.0))
    with pytest.raises(ValueError, match="callable given as optimizer must return .* 3 finite"):
        optimizer.maximize(quadratic, np.zeros(3), WIDE, 10)


def test_steps_on_tensors_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(5, 3, generator=generator), torch.randn(4, generator=generator)]
    ours, theirs = ([x.clone().requires_grad_(True) for x in start] for _ in range(2))
    unused = torch.ones(2, requires_grad=True)
    adam = TensorAdam([([ours[0]], 0.1), ([ours[1], unused], 0.02)], betas=(0.9, 0.99))
    reference = torch.optim.Adam(
        [{"params": [theirs[0]], "lr": 0.1}, {"params": [theirs[1]], "lr": 0.02}], betas=(0.9, 0.99)
    )
    for k in range(6):
        for tensors in (ours, theirs):
            for x in tensors:
                x.grad = torch.sin((k + 1) * x.detach())
        for group, rate in zip(reference.param_groups, (0.1, 0.02), strict=True):
            group["lr"] = rate / (k + 1)
        adam.step(1 / (k + 1))
        reference.step()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=0)
    assert bool((unused == 1).all())
    groups = [{"params": [x.detach().clone().requires_grad_(True)], "lr": 0.1} for x in start]
    grouped, theirs = AdamOfGroups(groups), [x.clone().requires_grad_(True) for x in start]
    reference = torch.optim.Adam([{"params": [x], "lr": 0.1} for x in theirs])
    for k in range(4):
        for one, other in zip(groups, theirs, strict=True):
            one["params"][0].grad = torch.sin(one["params"][0].detach())
            other.grad = torch.sin(other.detach())
        for group in (*groups, *reference.param_groups):
            group["lr"] = 0.1 / (k + 1)
        grouped.step()
        reference.step()
    for one, other in zip(groups, theirs, strict=True):
        torch.testing.assert_close(one["params"][0], other, rtol=1e-6, atol=1e-9)
    adam.zero_grad()
    assert ours[0].grad is None


@pytest.mark.slow
def test_small_fits_load_no_compilers():
    """torch.optim imports them on first use, which takes longer than the fit."""
    program = """
import sys, numpy as np, skscalablegp as sk
rng = np.random.default_rng(0)
X = rng.standard_normal((40, 2))
sk.SVGPRegressor(random_state=0).fit(X, X[:, 0])
sk.SVGPClassifier(random_state=0).fit(X, X[:, 0] > 0)
X = rng.standard_normal((3100, 2))
sk.SCGDDKLRegressor(max_epochs=1, random_state=0).fit(X, X[:, 0])
print("torch._dynamo" in sys.modules)
"""
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "False"


@pytest.mark.parametrize(
    "name",
    [
        *("IterativeGPRegressor", "KISSGPRegressor", "NNGPRegressor", "PoERegressor"),
        *("QSGPRegressor", "QSRVMRegressor", "RFFRegressor", "SGPRRegressor"),
    ],
)
def test_the_name_that_reports_use_is_accepted(name):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(40, 2))
    y = np.sin(4 * X[:, 0]) + 0.1 * rng.standard_normal(40)
    model = getattr(skscalablegp, name)(optimizer="bfgs", random_state=0)
    assert model.fit(X, y).score(X, y) > 0.8


def test_rounding_does_not_decide_where_the_curvature_is_new():
    """The steps of a shifted function are the shifted steps: the longest ones add up to numbers
    that a threshold must not share."""

    class Shifted:
        informed = True

        def __init__(self, peak):
            self.peak, self.renewed = peak, []

        def __call__(self, theta):
            self.renewed.append(0)
            left = self.peak - theta
            return -50.0 * float(left @ left), 100 * left

        def information(self, theta, n_rows, generator):
            self.renewed.append(1)
            return np.eye(len(theta)) * 90.0

    orders = set()
    for shift in np.linspace(0.0, 1.0, 40):
        start = np.full(1, shift)
        evaluate = Shifted(start + 6.5)
        QuasiNewton().maximize(evaluate, start, np.array([[-20.0, 20.0]]), 100)
        orders.add(tuple(evaluate.renewed[:10]))
    assert len(orders) == 1
