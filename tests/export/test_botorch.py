"""Fitted models in BoTorch."""

import sys

import numpy as np
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Hartmann
from export.exported import (
    KERNELS,
    MODELS,
    NEW,
    OVER,
    SMOOTH,
    UNITS,
    X,
    Y,
    exact,
    fitted,
    marked_slow,
)
from oracles import slope_by_differences
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.export import NotExportable

SINGLE = {"experts", "nearest-experts", "committee", "grid", "additive-grid", "grid-network"}
SINGLE |= {"love-grid", "nearest"}
JOINT = sorted(set(MODELS) - SINGLE)
FEW = {"exact-normalised", "features", "collapsed", "inducing-network", "chevron"}
JOINT += OVER
FEW |= {"mean-function", "stack", "stack-of-noise"}
FEW |= {"pathwise", "process", "neighbours", "love-rows", "love-inducing", "love-features"}
ROWS = torch.tensor(NEW[:12]).reshape(2, 2, 3, 3)


def joint(model, rows):
    """Mean and covariance by the model itself."""
    process = fitted_process(model)
    covariance = process.posterior.covariance(process.inputs(rows)).double().numpy()
    return model.predict(rows), covariance * np.square(process.y_std)


@pytest.mark.parametrize("name", [marked_slow(name, FEW) for name in JOINT])
def test_joint_posteriors_are_those_of_the_model(name):
    model = fitted(name)
    posterior = sk.as_botorch(model).posterior(ROWS)
    covariance = posterior.distribution.covariance_matrix
    assert posterior.mean.shape == (2, 2, 3, 1) and covariance.shape == (2, 2, 3, 3)
    # Neighbours may condition the rows in another order.
    tol = 0.05 if name == "neighbours" else 1e-8
    for at in np.ndindex(2, 2):
        mean, right = joint(model, ROWS[at].numpy())
        np.testing.assert_allclose(posterior.mean[at][:, 0], mean, atol=1e-8 * Y.std())
        np.testing.assert_allclose(covariance[at], right, atol=tol * right.max())
    noisy = sk.as_botorch(model).posterior(ROWS, observation_noise=True).variance[..., 0]
    std = model.predict_std(ROWS.reshape(-1, 3).numpy()).reshape(2, 2, 3)
    np.testing.assert_allclose(noisy.sqrt(), std, atol=1e-8 * Y.std())


def test_neighbours_that_are_all_rows_give_the_exact_posterior():
    kernel = KERNELS["matern32"]
    settings = {"small_table": "method", "optimizer": None, "random_state": 0}
    model = sk.NNGPRegressor(kernel, n_neighbors=len(X) - 1, local_scale=False, **settings)
    model.set_params(calibrate=False).fit(X, Y)
    found = sk.as_botorch(model).posterior(ROWS).distribution.covariance_matrix
    right = sk.as_botorch(exact(kernel, normalize_y="auto").fit(X, Y)).posterior(ROWS)
    right = right.distribution.covariance_matrix
    np.testing.assert_allclose(found, right, atol=2e-2 * float(right.max()))


@pytest.mark.parametrize("name", ["grid", "nearest-experts"])
def test_models_of_single_rows(name):
    model = sk.as_botorch(fitted(name))
    single = model.posterior(torch.tensor(NEW)[:, None], observation_noise=True)
    std = fitted(name).predict_std(NEW)
    np.testing.assert_allclose(single.variance[:, 0, 0].sqrt(), std, atol=1e-8 * Y.std())
    with pytest.raises(NotExportable, match="q=1"):
        model.posterior(ROWS)


@pytest.mark.parametrize("name", ["exact", "inducing", "neighbours", "pathwise", "stack"])
def test_gradients_by_finite_differences(name):
    model, rows = sk.as_botorch(fitted(name)), ROWS.clone().requires_grad_()
    weights = torch.randn(
        2, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )

    def value(rows):
        posterior = model.posterior(rows)
        both = posterior.mean + posterior.distribution.covariance_matrix
        return (weights * both).sum()

    (slope,) = torch.autograd.grad(value(rows), rows)
    for at in [(0, 0, 0, 0), (0, 1, 2, 1), (1, 1, 1, 2)]:
        one = torch.zeros_like(ROWS)
        one[at] = 1.0
        step = 2e-6 * UNITS[at[-1]]
        change = slope_by_differences(lambda t, one=one: value(ROWS + t * one), step)
        unit = Y.std() * max(1.0, Y.std()) / UNITS[at[-1]]
        assert abs(float(slope[at] - change)) < 1e-5 * unit


def test_several_outputs():
    model = exact(KERNELS["rbf"], normalize_y=True)
    model = sk.as_botorch(model.fit(X, np.column_stack([Y, 3 * X[:, 0]])))
    assert model.num_outputs == 2 and model.batch_shape == torch.Size([])
    both = model.posterior(ROWS)
    assert both.mean.shape == (2, 2, 3, 2)
    one = model.posterior(ROWS, output_indices=[1])
    torch.testing.assert_close(one.mean[..., 0], both.mean[..., 1])
    torch.testing.assert_close(one.variance[..., 0], both.variance[..., 1])
    listed = ModelList(sk.as_botorch(fitted("exact")), sk.as_botorch(fitted("inducing")))
    assert listed.posterior(ROWS).mean.shape == (2, 2, 3, 2)
    weights = ScalarizedPosteriorTransform(torch.tensor([1.0, 2.0], dtype=torch.float64))
    total = model.posterior(ROWS, posterior_transform=weights).mean[..., 0]
    torch.testing.assert_close(total, both.mean[..., 0] + 2 * both.mean[..., 1])


def test_observation_noise_as_a_tensor():
    model = sk.as_botorch(fitted("exact"))
    plain, noise = model.posterior(ROWS), torch.full((2, 2, 3, 1), 7.0, dtype=torch.float64)
    noisy = model.posterior(ROWS, observation_noise=noise)
    torch.testing.assert_close(noisy.variance, plain.variance + 7)


@pytest.mark.exact_input
@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("name", ["default", "normalised", "grid", "features", "pipeline"])
def test_conditioning_against_dense_algebra(name, t, many):
    """At the hyperparameters and in the units of the first rows, with and without known noise."""
    targets = np.column_stack([1000 + 50 * Y / Y.std(), -3000 + 0.01 * X[:, 1]])[:, :t]
    first, more, new = slice(70), slice(70, 70 + many), ROWS.reshape(-1, 3)
    model = {
        "normalised": exact(SMOOTH, normalize_y=True),
        "grid": sk.KISSGPRegressor(random_state=0),
        "features": sk.RFFRegressor(random_state=0),
        "pipeline": make_pipeline(StandardScaler(), sk.IterativeGPRegressor(random_state=0)),
    }.get(name, sk.IterativeGPRegressor(random_state=0))
    model.fit(X[first], targets[first, 0] if t == 1 else targets[first])
    scaled, process = (lambda A: A), model
    if name == "pipeline":
        scaled, process = model[0].transform, model[-1]
    before, kernel = sk.as_botorch(model), process.kernel_
    mean, std = targets[first].mean(0), targets[first].std(0)
    kept = before.posterior(ROWS[:, :, :1]).mean.clone()
    rows, Y_new = torch.tensor(X[more]), torch.tensor(targets[more])
    for noise in (None, torch.tensor(np.linspace(0.1, 0.4, many)[:, None] * std**2)):
        after = before.condition_on_observations(rows, Y_new, noise)
        own = np.zeros(70 + many)
        own[more] = 0.0 if noise is None else noise[:, 0].numpy() / std[0] ** 2
        A, B = scaled(X[: 70 + many]), scaled(new.numpy())
        H, cross = kernel(A) + np.diag(own), kernel(B, A)
        right = mean + cross @ np.linalg.solve(H, targets[: 70 + many] - mean)
        variance = kernel.diag(B) - (cross * np.linalg.solve(H, cross.T).T).sum(1)
        found = after.posterior(new[:, None], observation_noise=True)
        np.testing.assert_allclose((found.mean[:, 0].numpy() - right) / std, 0, atol=1e-5)
        np.testing.assert_allclose(
            found.variance[:, 0].numpy(), variance[:, None] * std**2, rtol=1e-5, atol=1e-8
        )
    torch.testing.assert_close(before.posterior(ROWS[:, :, :1]).mean, kept)


def test_what_cannot_be_conditioned():
    model = sk.as_botorch(fitted("exact"))
    with pytest.raises(NotImplementedError, match="qKnowledgeGradient"):
        model.condition_on_observations(ROWS, ROWS[..., :1])
    with pytest.raises(NotImplementedError, match="StackedGPRegressor.* fit it again"):
        sk.as_botorch(fitted("stack")).condition_on_observations(ROWS[0, 0], ROWS[0, 0, :, :1])
    with pytest.raises(NotImplementedError, match="fit it again"):
        sk.as_botorch(fitted("relevance")).condition_on_observations(ROWS[0, 0], ROWS[0, 0, :, :1])


def test_rows_and_targets_that_do_not_fit_say_what_to_do():
    model, rows = sk.as_botorch(fitted("exact")), ROWS[0, 0]
    with pytest.raises(ValueError, match=r"X must have shape \(m, 3\).* got \(3, 2\)"):
        model.posterior(rows[:, :2])
    with pytest.raises(ValueError, match="targets from 0 to 0, got 1"):
        model.posterior(rows, output_indices=[1])
    with pytest.raises(ValueError, match=r"observation_noise must .* \(3, 1\).* got \(2, 1\)"):
        model.posterior(rows, observation_noise=torch.ones(2, 1).double())
    with pytest.raises(ValueError, match=r"Y must have shape \(3, 1\).* got \(2, 1\)"):
        model.condition_on_observations(rows, rows[:2, :1])
    with pytest.raises(ValueError, match=r"X must have shape \(m, 3\).* got \(3, 2\)"):
        model.condition_on_observations(rows[:, :2], rows[:, :1])
    labels = sk.SVGPClassifier(n_inducing=5, max_iter=2, random_state=0).fit(X, Y > Y.mean())
    with pytest.raises(NotExportable, match="SVGPClassifier cannot .* give a regressor"):
        sk.as_botorch(labels)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(ImportError, match=r"skscalablegp\[botorch\]"):
        sk.as_botorch(fitted("exact"))


# ------------------------------------------------------------------ optimisation

UNIT = torch.stack([torch.zeros(6), torch.ones(6)]).double()


def search(seed, choose, n_start=12, steps=12):
    """The best value of Hartmann-6 (to be maximised) after some steps, and that of random rows."""
    problem, draws = Hartmann(6, negate=True), np.random.RandomState(seed)
    rows = draws.uniform(size=(n_start, 6))
    values = problem(torch.tensor(rows)).numpy()
    # Without bounds, the likelihood of few rows may prefer length scales of noise.
    kernel = 1.0 * Matern([0.5] * 6, (0.1, 4.0), nu=2.5) + WhiteKernel(1e-4, (1e-8, 1e-2))
    gp = sk.IterativeGPRegressor(kernel, normalize_y=True, random_state=0)
    for step in range(steps):
        model = gp.fit(rows, values)
        gp.set_params(kernel=model.kernel_)
        torch.manual_seed(seed * 1000 + step)
        new = choose(sk.as_botorch(model), rows, values, step)
        rows = np.vstack([rows, new])
        values = np.append(values, problem(torch.tensor(new)).numpy())
    random = problem(torch.tensor(draws.uniform(size=(len(rows), 6)))).numpy()
    return values.max(), random.max()


def by_improvement(model, rows, values, step):
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=step)
    gain = qLogExpectedImprovement(model, best_f=values.max(), sampler=sampler)
    settings = {"num_restarts": 2, "raw_samples": 64, "options": {"maxiter": 40}}
    return optimize_acqf(gain, UNIT, q=1, **settings)[0].numpy()


def by_thompson(model, rows, values, step, q=4):
    """The maxima of q functions, sought by their gradients from random rows and beside the best."""
    draws, random = model.draw_functions(q, random_state=step), np.random.RandomState(step)
    best = rows[values.argsort()[-5:]]
    beside = np.repeat(best, 40, axis=0) + 0.1 * random.standard_normal((200, 6))
    starts = np.vstack([random.uniform(size=(1000, 6)), beside.clip(0, 1), best])
    order, found = draws.values(starts).argsort(axis=0), []
    for j in range(q):
        x = torch.tensor(starts[order[-4:, j]], requires_grad=True)
        optimizer = torch.optim.Adam([x], lr=0.03)
        for _ in range(60):
            optimizer.zero_grad()
            (-draws(x)[:, j].sum()).backward()
            optimizer.step()
            x.data.clamp_(0, 1)
        ends = x.detach().numpy()
        found.append(ends[draws.values(ends)[:, j].argmax()])
    return np.array(found)


@pytest.mark.night
@pytest.mark.parametrize(("choose", "steps"), [(by_improvement, 30), (by_thompson, 12)])
def test_optimisation_beats_random_search_in_all_seeds(choose, steps):
    results = [search(seed, choose, steps=steps) for seed in range(5)]
    assert all(found > random for found, random in results), results


def test_one_step_of_each_kind():
    for choose in (by_improvement, by_thompson):
        found, _ = search(0, choose, steps=1)
        assert np.isfinite(found)
