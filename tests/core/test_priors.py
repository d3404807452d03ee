"""Priors of hyperparameters: densities, and their effect on the objective of training."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPRegressor,
    RFFRegressor,
    SGPRRegressor,
    SVGPRegressor,
)
from skscalablegp.kernels import Columns, LowRankCategorical, compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.models.neighbors import Scales, neighbours_of
from skscalablegp.priors import Gamma, HalfCauchy, LogNormal, Prior

PRIORS = {
    LogNormal(2.0, 0.5): stats.lognorm(0.5, scale=2.0),
    Gamma(0.5, 3.0): stats.gamma(0.5, scale=1 / 3),
    Gamma(4.0, 0.5): stats.gamma(4.0, scale=2.0),
    HalfCauchy(0.7): stats.halfcauchy(scale=0.7),
}
NAMES = "k1__k1__constant_value", "k1__k2__length_scale", "k2__noise_level"
KERNEL = ConstantKernel(1.5) * RBF([0.7, 1.2]) + WhiteKernel(0.2)
OURS = {
    NAMES[0]: HalfCauchy(2.0),
    NAMES[1]: Gamma([2.0, 3.0], 1.5),
    NAMES[2]: LogNormal(0.05, 0.7),
}


def table(n=40):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(n)


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_densities_are_those_of_the_logarithm(prior):
    t = np.linspace(-30, 20, 101) if isinstance(prior, HalfCauchy) else np.linspace(-6, 5, 23)
    x = np.exp(t)
    density, slope = prior.log_density(t)
    # p(log x) = p(x) x.
    assert_allclose(density, PRIORS[prior].logpdf(x) + t, rtol=1e-9)
    finite = (prior.log_density(t + 1e-6)[0] - prior.log_density(t - 1e-6)[0]) / 2e-6
    assert_allclose(slope, finite, rtol=1e-5, atol=1e-7)

    def density_at(u):
        return np.exp(prior.log_density(np.array([u]))[0][0])

    total, _ = quad(density_at, -40, 40, points=[0], limit=200)
    assert_allclose(total, 1, rtol=1e-6)


def test_modes_are_typical_values():
    t = np.linspace(-4, 4, 80_001)

    def mode(prior):
        return np.exp(t[np.argmax(prior.log_density(t)[0])])

    assert_allclose(mode(LogNormal(2.0, 0.5)), 2.0, rtol=1e-3)
    assert_allclose(mode(Gamma(0.5, 0.25)), 2.0, rtol=1e-3)
    assert_allclose(mode(HalfCauchy(2.0)), 2.0, rtol=1e-3)


@pytest.mark.parametrize("make", [lambda: LogNormal(0.0), lambda: Gamma(2.0, [1.0, -1.0]),
                                  lambda: HalfCauchy(np.inf)])  # fmt: skip
def test_numbers_of_a_prior_are_positive(make):
    with pytest.raises(ValueError, match="(median|rate|scale) (> 0, got|must be a finite)"):
        make()


def test_a_theta_prior_adds_up_by_name():
    kernel = compile_kernel(KERNEL, 2, priors=OURS)
    theta = np.append(kernel.theta0.numpy(), [7.0, 8.0])
    value, grad = kernel.log_prior(theta)
    expected = [
        PRIORS_AT(prior, theta[place])
        for prior, place in zip(OURS.values(), ([0], [1, 2], [3]), strict=True)
    ]
    assert_allclose(value, sum(expected))
    finite = [
        (kernel.log_prior(theta + e)[0] - kernel.log_prior(theta - e)[0]) / 2e-6
        for e in 1e-6 * np.eye(6)
    ]
    assert_allclose(grad, finite, atol=1e-7)
    assert not compile_kernel(KERNEL, 2).log_prior


def PRIORS_AT(prior, t):
    """By scipy, with the slope of the logarithm."""
    made = {
        HalfCauchy: lambda: stats.halfcauchy(scale=2.0),
        Gamma: lambda: stats.gamma([2.0, 3.0], scale=1 / 1.5),
        LogNormal: lambda: stats.lognorm(0.7, scale=0.05),
    }[type(prior)]()
    return np.sum(made.logpdf(np.exp(t)) + t)


MODELS = [
    IterativeGPRegressor(KERNEL, priors=OURS),
    IterativeGPRegressor(KERNEL, priors=OURS, optimizer="adam"),
    RFFRegressor(KERNEL, priors=OURS, n_components=40),
    SGPRRegressor(KERNEL, priors=OURS, n_inducing=10),
    SGPRRegressor(KERNEL, priors=OURS, n_inducing=10, optimize_inducing=True),
    PoERegressor(KERNEL, priors=OURS, expert_size=20),
    PoERegressor(KERNEL, priors=OURS, expert_size=20, share_hyperparameters=False),
    KISSGPRegressor(KERNEL, priors=OURS, grid_size=15),
    SVGPRegressor(KERNEL, priors=OURS, n_inducing=10, max_iter=20),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", MODELS, ids=lambda m: repr(m).split("(")[0])
def test_training_maximises_likelihood_times_prior(model):
    """The value of each step, and its gradient against finite differences in theta."""
    X, y = table()
    steps = []
    model = clone(model).set_params(callbacks=lambda step: steps.append(step), random_state=0)
    model.fit(X, y)
    value, grad, theta = steps[-1].objective, steps[-1].grad, steps[-1].theta
    assert steps[-1].objective_name.partition(" per row")[0].endswith("+ log prior")
    prior = compile_kernel(KERNEL, 2, priors=OURS).log_prior
    if isinstance(model, PoERegressor) and not model.share_hyperparameters:
        total = sum(prior(kernel.theta)[0] for kernel in model.kernels_)
        assert_allclose(model.fit_report_.log_prior, total)
        return
    assert_allclose(model.fit_report_.log_prior, prior(model.kernel_.theta)[0])
    kept = "lower_bound_" if isinstance(model, SGPRRegressor | SVGPRegressor) else None
    without = getattr(model, kept or "log_marginal_likelihood_value_")
    assert_allclose(model.fit_report_.log_posterior, without + prior(model.kernel_.theta)[0])
    if isinstance(model, SVGPRegressor):
        return
    likelihood = model.lower_bound if kept else model.log_marginal_likelihood

    def objective(theta):
        return likelihood(theta) + prior(theta)[0]

    p = len(model.kernel_.theta)
    if p < len(theta):
        # The points moved along: only the theta of the kept ones can be asked for.
        return
    assert_allclose(objective(theta), value, rtol=1e-6)
    finite = [(objective(theta + e) - objective(theta - e)) / 2e-5 for e in 1e-5 * np.eye(p)]
    assert_allclose(grad, finite, rtol=1e-4, atol=2e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model, stage, rows, n",
    [
        (IterativeGPRegressor(subset_size=30), "30", 30, 90),
        (IterativeGPRegressor(optimizer="adam"), "full", 90, 90),
        (PoERegressor(expert_size=30), "30", 30, 90),
        (NNGPRegressor(n_neighbors=10, subset_size=30), "30", 30, 90),
        (NNGPRegressor(n_neighbors=10, objective="subset", subset_size=45), "full", 45, 90),
        (SGPRRegressor(n_inducing=10), "start", 500, 2100),
        (SVGPRegressor(n_inducing=10), "start", 500, 2100),
    ],
    ids=str,
)
def test_a_prior_counts_in_proportion_on_rows_that_stand_for_all(
    model, stage, rows, n, given_start
):
    """What it adds to the objective of the first step, against scipy's density."""
    X, y = table(n)
    steps = {}
    for priors in (None, OURS):
        seen = steps[priors is None] = []
        asked = {"priors": priors, "callbacks": lambda step, seen=seen: seen.append(step) or True}
        clone(model).set_params(random_state=0, **asked).fit(X, y)
    (free,), (bound,) = steps[True], steps[False]
    assert free.stage == bound.stage == stage
    theta = bound.theta
    assert_allclose(theta, free.theta)
    added = [
        PRIORS_AT(prior, theta[place])
        for prior, place in zip(OURS.values(), ([0], [1, 2], [3]), strict=True)
    ]
    assert_allclose(bound.objective - free.objective, rows / n * sum(added), rtol=1e-6)


def test_the_likelihood_of_a_subset_is_reported_without_its_prior():
    X, y = table(90)
    model = NNGPRegressor(n_neighbors=10, objective="subset", subset_size=45, calibrate=False,
                          priors=OURS, random_state=0).fit(X, y)  # fmt: skip
    own = model.log_marginal_likelihood(model.kernel_.theta)
    assert_allclose(model.log_marginal_likelihood_value_, own, rtol=1e-9)


def test_the_scale_by_neighbours_has_its_prior():
    """Against a fine grid of scales; without a prior the scale is the mean squared error."""
    X, y = map(torch.as_tensor, table(90))
    rows, found = torch.arange(0, 90, 3), {}
    for priors in (None, {NAMES[2]: LogNormal(0.01, 0.05)}):
        kernel = compile_kernel(KERNEL, 2, priors=priors)
        problem = GPProblem(kernel, Rows.of(X, y[:, None]))
        near = neighbours_of(problem, kernel.theta0, rows, 10)
        scales = Scales(problem, kernel.theta0)
        found[priors is None] = scales.best(rows, near, torch.float64, local=False).scale
    u = np.linspace(-5, 2, 70_001)
    prior = stats.norm(np.log(0.01), 0.05).logpdf(np.log(KERNEL.k2.noise_level) + u)
    best = u[np.argmax(-0.5 * (u + found[True] * np.exp(-u)) + prior / 90)]
    assert abs(best - np.log(found[True])) > 0.3
    assert_allclose(np.log(found[False]), best, atol=1e-3)


def test_the_mode_is_that_of_scikit_learns_likelihood_and_the_prior():
    X, y = table()
    kernel = ConstantKernel(1.5) * RBF(0.7) + WhiteKernel(0.2)
    priors = OURS | {NAMES[1]: Gamma(2.0, 1.5)}
    model = IterativeGPRegressor(kernel, priors=priors, alpha=1e-10).fit(X, y)
    theirs = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10).fit(X, y)
    prior = compile_kernel(kernel, 2, priors=priors).log_prior

    def objective(theta):
        return theirs.log_marginal_likelihood(theta) + prior(theta)[0]

    best = model.kernel_.theta
    assert_allclose(model.fit_report_.log_posterior, objective(best), rtol=1e-8)
    for k, step in np.ndindex(3, 2):
        assert objective(best + 0.05 * (2 * step - 1) * np.eye(3)[k]) < objective(best)


def test_slope_of_a_variational_step(stand_in, monkeypatch):
    """The gradient that Adam is given, against finite differences of the score."""
    X, y = table()
    seen = {}

    def move(self, n):
        theta = self._theta.detach().clone()
        real(self, n)
        seen.update(stepper=self, theta=theta, grad=self._theta.grad.clone())

    model = SVGPRegressor(KERNEL, priors=OURS, n_inducing=10, max_iter=3, random_state=0,
                          optimize_inducing=False, dtype="float64")  # fmt: skip
    real = stand_in("SparseStepper._move_hyperparameters", move)
    with_prior = model.fit(X, y) and seen["grad"], seen["theta"]
    clone(model).set_params(priors=None, max_iter=1).fit(X, y)
    first, at = seen["grad"], seen["theta"]
    clone(model).set_params(max_iter=1).fit(X, y)
    monkeypatch.undo()
    assert torch.equal(seen["theta"], at)
    slope = compile_kernel(KERNEL, 2, priors=OURS).log_prior(at.numpy())[1] / len(X)
    assert_allclose((seen["grad"] - first).numpy(), -slope, rtol=1e-9)
    assert with_prior[0].shape == (4,)


def test_names_that_cannot_have_a_prior():
    X, y = table()
    available = r"\['k1__k1__constant_value', 'k1__k2__length_scale', 'k2__noise_level'\]"
    for Model in (IterativeGPRegressor, SVGPRegressor, KISSGPRegressor):
        with pytest.raises(
            ValueError, match="'noise', which the kernel does not have.*" + available
        ):
            Model(priors={"noise": LogNormal()}).fit(X, y)
    fixed = ConstantKernel(1.0, "fixed") * RBF() + WhiteKernel()
    with pytest.raises(ValueError, match="'k1__k1__constant_value', which is fixed"):
        IterativeGPRegressor(fixed, priors={NAMES[0]: LogNormal()}).fit(X, y)
    with pytest.raises(TypeError, match=r"priors\['k1__k2__length_scale'\] must be .*got 1.0"):
        IterativeGPRegressor(priors={NAMES[1]: 1.0}).fit(X, y)
    with pytest.raises(ValueError, match="one for each of the 2 elements"):
        IterativeGPRegressor(priors={NAMES[1]: LogNormal([1.0, 2.0, 3.0])}).fit(X, y)
    # Loadings may be negative: they are in theta as they are.
    signed = compile_kernel(LowRankCategorical(3), 1)
    assert signed.n_params == 6
    with pytest.raises(ValueError, match=r"that can have a prior are \['variances'\]"):
        compile_kernel(LowRankCategorical(3), 1, priors={"loadings": LogNormal()})
    with pytest.raises(TypeError, match="priors"):
        QSGPRegressor(priors={})


def test_a_prior_of_a_kernel_on_columns():
    X, y = table()
    kernel = Columns(RBF(), [0]) + WhiteKernel()
    prior = {"k1__kernel__length_scale": LogNormal(3.0, 0.001)}
    model = IterativeGPRegressor(kernel, priors=prior).fit(X, y)
    assert_allclose(model.kernel_.k1.kernel.length_scale, 3.0, rtol=0.01)
    text = str(model.fit_report_)
    assert "log prior" in text and "log posterior" in text


def test_without_training_a_prior_is_reported_as_ignored():
    X, y = table()
    model = IterativeGPRegressor(KERNEL, priors=OURS, optimizer=None).fit(X, y)
    assert "optimizer=None" in model.fit_report_.ignored["priors"]
    free = IterativeGPRegressor(KERNEL).fit(X, y)
    assert "log_prior" not in free.fit_report_ and "priors" not in free.fit_report_.ignored


def test_a_prior_of_ones_own():
    class Flat(Prior):
        def log_density(self, log_value):
            return np.zeros_like(log_value), np.zeros_like(log_value)

    X, y = table()
    flat = IterativeGPRegressor(KERNEL, priors={NAMES[1]: Flat()}).fit(X, y)
    assert_allclose(flat.kernel_.theta, IterativeGPRegressor(KERNEL).fit(X, y).kernel_.theta)


def test_few_rows_a_column_have_a_prior_of_the_noise_by_default():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (121, 4))
    y = 100 * (np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(121))

    def chosen(n=40, d=4, **settings):
        known = settings.pop("noise_variance", None)
        model = IterativeGPRegressor(**settings).fit(X[:n, :d], y[:n], noise_variance=known)
        return model, model.fit_report_.choices["priors"].value

    model, priors = chosen()
    assert list(priors) == ["k2__noise_level"] and priors["k2__noise_level"].sigma == 1.5
    assert_allclose(priors["k2__noise_level"].median, 0.1)
    same = IterativeGPRegressor(priors=priors).fit(X[:40], y[:40])
    assert_allclose(model.kernel_.theta, same.kernel_.theta, rtol=1e-6)
    raw, priors = chosen(normalize_y=False)
    assert_allclose(priors["k2__noise_level"].median, 0.1 * np.mean(y[:40] ** 2))
    assert "log_prior" in model.fit_report_
    for other in ({"n": 121}, {"d": 2}, {"n": 46, "d": 3}, {"noise_variance": 1.0}):
        assert chosen(**other)[1] is None, other
    assert chosen(kernel=KERNEL, d=2)[1] is None
    still = IterativeGPRegressor(optimizer=None).fit(X[:40], y[:40])
    assert "log_prior" not in still.fit_report_
    free = IterativeGPRegressor(priors=None).fit(X[:40], y[:40])
    assert "priors" not in free.fit_report_.choices and "log_prior" not in free.fit_report_
