"""RFFRegressor and SSRFFRegressor: the collapsed likelihood, its bias, and how it is removed."""

import sys
import warnings

import numpy as np
import pytest
import torch
from oracles import generator, normal, z_score
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp import RFFRegressor, RRCGRegressor, SSRFFRegressor
from skscalablegp.core import Machine, to_torch
from skscalablegp.core.training import StopTraining
from skscalablegp.features import sample_prior_features
from skscalablegp.gradients import GradientState
from skscalablegp.kernels import Columns, NoSpectralDensity, compile_kernel
from skscalablegp.linalg.blocks import watched
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood
from skscalablegp.linalg.truncation import single_sample
from skscalablegp.models.fourier import (
    FeatureLevels,
    SingleSampleGradient,
    collapsed_marginal_likelihood,
    level_terms,
    single_sample_terms,
)
from skscalablegp.models.fourier._plan import plan_features, plan_series
from skscalablegp.solvers import End
from skscalablegp.training import LBFGS, Adam
from skscalablegp.truncation import ExponentialTruncation, FixedTruncation, ReciprocalTruncation

C, W = ConstantKernel, WhiteKernel
PERIODIC = Columns(ExpSineSquared(), 0) + W()
RICH = C(1.3) * RBF([0.8, 1.4]) + RationalQuadratic(0.7, 1.1) + DotProduct(0.3) + W(0.1)


def problem(n=20, t=1, kernel=None):
    X = normal(n, 2, seed=5)
    Y = torch.sin(2 * X[:, :1]) + 0.2 * normal(n, t, seed=6)
    return GPProblem(compile_kernel(kernel or C(1.2) * RBF([0.8, 1.4]) + W(0.1), 2), Rows.of(X, Y))


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)


# ---------------------------------------------------------------- the collapsed likelihood


@pytest.mark.parametrize("n_pairs", [3, 30])
@pytest.mark.parametrize("batch_rows", [7, 1000])
def test_value_and_gradient_are_those_of_dense_algebra(n_pairs, batch_rows):
    ours = problem(30, 2, RICH)
    features = sample_prior_features(ours.kernel, 2, n_pairs, generator(3))
    theta = ours.kernel.theta0.clone().requires_grad_(True)
    phi = features.evaluate(theta, ours.X)
    H = phi @ phi.T + torch.diag(ours.kernel.noise(theta, ours.X))
    normal_ = torch.distributions.MultivariateNormal(torch.zeros(30).double(), H)
    value = normal_.log_prob(ours.Y.T).sum()
    (grad,) = torch.autograd.grad(value, theta)
    result = collapsed_marginal_likelihood(
        ours, ours.kernel.theta0, features, batch_rows=batch_rows
    )
    assert result.value == pytest.approx(float(value.detach()), rel=1e-9)
    torch.testing.assert_close(result.grad, grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("n_pairs", [3, 30])
def test_likelihoods_on_any_number_of_cores_are_the_same(n_pairs, set_workers, thresholds):
    thresholds(_VALUES=30, _FEW_FLOPS=1000)
    thresholds("blocks", _ROWS=2)
    ours, found = problem(30, 2, RICH), []
    features = sample_prior_features(ours.kernel, 2, n_pairs, generator(3))
    for count in (1, 3):
        set_workers(count)
        result = collapsed_marginal_likelihood(ours, ours.kernel.theta0, features, batch_rows=20)
        found.append((result.value, *result.grad.tolist()))
    assert found[0] == found[1]


def test_nested_features_are_the_first_of_one_draw():
    ours = problem(kernel=RICH)
    theta, X = ours.kernel.theta0, ours.X
    many = sample_prior_features(ours.kernel, 2, 50, generator(3))
    few = many.head(20)
    full, part = many.evaluate(theta, X), few.evaluate(theta, X)
    assert part.shape[1] == few.n_features == many.n_features - 2 * 2 * 30
    torch.testing.assert_close(part[:, :20], full[:, :20] * (50 / 20) ** 0.5)
    assert many.head(50).n_features == many.n_features
    with pytest.raises(ValueError, match="n_pairs must be an integer of at least 1"):
        many.head(0)


def feature_terms(ours, n_pairs, n_draws):
    theta = ours.kernel.theta0
    results = [
        collapsed_marginal_likelihood(
            ours, theta, sample_prior_features(ours.kernel, 2, n_pairs, generator(k)), False
        )
        for k in range(n_draws)
    ]
    return torch.tensor([[r.quadratic, r.log_det] for r in results]).double()


def exact_terms(ours):
    levels = FeatureLevels(2, None)
    return level_terms(ours, ours.kernel.theta0, levels, None, 0)


def test_random_features_have_the_bias_of_theory():
    ours = problem()
    quadratic, log_det = feature_terms(ours, 6, 300).T
    exact = exact_terms(ours)
    assert z_score(quadratic, float(exact[0])) > 4
    assert z_score(log_det, float(exact[1])) < -4


# ---------------------------------------------------------------- single samples


def single_sample_estimates(ours, levels, n_frequencies, n_levels):
    """Estimates for n_levels draws of the level with each of n_frequencies sets of frequencies."""
    theta, truncation, g = ours.kernel.theta0, levels.truncation, generator(9)
    out = []
    for _ in range(n_frequencies):
        pairs = levels.n_pairs(truncation.high, ours.kernel)
        features = sample_prior_features(ours.kernel, 2, pairs, g)
        known = {
            level: level_terms(ours, theta, levels, features, level)
            for level in range(truncation.low - 1, truncation.high + 1)
        }
        base = known[truncation.low - 1]
        increments = {j: known[j] - known[j - 1] for j in known if j - 1 in known}
        out += [
            single_sample(base, increments.__getitem__, truncation, int(draw))
            for draw in truncation.sample(n_levels, g)
        ]
    return torch.stack(out)


@pytest.mark.parametrize(
    "truncation",
    [
        pytest.param(ReciprocalTruncation(), marks=pytest.mark.slow),
        ExponentialTruncation(0.1, min_iter=1),
    ],
    ids=str,
)
def test_single_sample_terms_and_gradient_are_unbiased(truncation):
    """Given frequencies every mean is exact, so that all 10,000 estimates are uncorrelated."""
    ours = problem()
    levels = FeatureLevels.of(len(ours.X), 6, 2, truncation)
    values = single_sample_estimates(ours, levels, 100, 100)
    assert len(values) == 10_000
    for component, expected in zip(values.T, exact_terms(ours), strict=True):
        assert abs(z_score(component, float(expected))) < 4


def test_the_series_telescopes_for_every_draw_of_frequencies():
    ours = problem()
    levels = FeatureLevels.of(len(ours.X), 6, 4, ReciprocalTruncation())
    truncation = levels.truncation
    assert (truncation.low, truncation.high) == (3, 5)
    theta = ours.kernel.theta0
    features = sample_prior_features(ours.kernel, 2, 10, generator(1))
    known = [level_terms(ours, theta, levels, features, j) for j in range(6)]
    mean = sum(
        float(truncation.pmf(j))
        * single_sample(known[2], lambda i: known[i] - known[i - 1], truncation, j)
        for j in range(3, 6)
    )
    torch.testing.assert_close(mean, exact_terms(ours))


@pytest.mark.slow
def test_the_gradient_estimator_draws_it_all_itself():
    ours = problem()
    theta, g = ours.kernel.theta0, generator(3)
    estimator = SingleSampleGradient(min_components=6, component_step=4)
    grads = torch.stack(
        [estimator.estimate(ours, theta, GradientState(g))[0].grad for _ in range(400)]
    )
    for component, expected in zip(grads.T, exact_terms(ours)[2:], strict=True):
        assert abs(z_score(component, float(expected))) < 4


def test_few_rows_are_trained_exactly():
    ours = problem()
    levels = FeatureLevels.of(20, 500, 100, ReciprocalTruncation())
    assert levels.truncation is None
    terms = single_sample_terms(ours, ours.kernel.theta0, levels, generator())
    exact = exact_marginal_likelihood(ours, ours.kernel.theta0)
    torch.testing.assert_close(terms[2:], exact.grad)


# ---------------------------------------------------------------- the estimators


@pytest.mark.slow
def test_many_features_give_the_exact_process():
    X, y = table()
    kernel = C(1.0) * RBF([1.0, 1.0]) + W(0.1)
    ours = RFFRegressor(kernel, n_components=4000, optimizer=None, random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    X_new = table(40, seed=1)[0]
    for a, b in zip(
        ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=0.05)


def test_an_exact_feature_map_gives_the_exact_process():
    X, y = table()
    kernel = DotProduct(0.7) * C(2.0) + W(0.2)
    ours = RFFRegressor(kernel, n_components=700, optimizer=None, random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    for a, b in zip(
        ours.predict(X, return_std=True), exact.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        exact.log_marginal_likelihood_value_
    )
    value, grad = ours.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    expected = exact.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    assert value == pytest.approx(expected[0])
    np.testing.assert_allclose(grad, expected[1], rtol=1e-6, atol=1e-6)


def test_training_more_rows_than_features():
    X, y = table(400)
    model = RFFRegressor(n_components=100, random_state=0, normalize_y=True).fit(X, y)
    assert model.score(X, y) > 0.97
    assert model.coef_.shape == (100, 1) and model.coef_precision_cholesky_.shape == (100, 100)
    assert model.log_marginal_likelihood(model.kernel_.theta) == pytest.approx(
        model.log_marginal_likelihood_value_
    )


def test_samples_follow_the_posterior():
    X, y = table()
    model = RFFRegressor(n_components=60, random_state=0).fit(X, y)
    X_new = table(5, seed=1)[0]
    draws = model.sample_y(X_new, 4000, random_state=0)
    mean, cov = model.predict(X_new, return_cov=True)
    spread = np.sqrt(np.diag(cov))
    assert np.abs((draws.mean(1) - mean) / (spread / 4000**0.5)).max() < 4
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.1 * spread.max() ** 2)


def test_single_samples_train_towards_the_exact_optimum():
    X, y = table(60)
    kernel = C(1.0, "fixed") * RBF(0.2) + W(0.5, "fixed")
    exact = GaussianProcessRegressor(kernel).fit(X, y)
    ours = SSRFFRegressor(
        kernel,
        min_components=40,
        component_step=10,
        max_iter=400,
        optimizer=Adam(0.05, decay=0.02),
        random_state=0,
    ).fit(X, y)
    start = exact.log_marginal_likelihood(kernel.theta)
    gained = ours.log_marginal_likelihood_value_ - start
    assert gained > 0.9 * (exact.log_marginal_likelihood_value_ - start)
    reference = GaussianProcessRegressor(ours.kernel_, optimizer=None).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), reference.predict(X), atol=1e-6)


@pytest.mark.parametrize(
    "amplitude, alpha, n_components",
    [(1.0, 0.0, 300), (1e6, 1e-10, 300), (1.0, 1e-10, 50), (1e6, 1e-10, 40), (2.0, 0.1, 300)],
)
def test_weights_are_those_of_dense_algebra_with_hardly_any_noise(amplitude, alpha, n_components):
    rng = np.random.default_rng(0)
    X = np.sort(rng.random((50, 1)), 0)
    y = np.sin(6 * X[:, 0])
    new = np.vstack([rng.random((5, 1)), [[3.0]], [[-40.0]]])
    settings = dict(alpha=alpha, n_components=n_components, optimizer=None, random_state=0)
    model = RFFRegressor(C(amplitude) * RBF(0.1), **settings).fit(X, y)
    features, theta = to_torch(model._features), torch.as_tensor(model.kernel_.theta)
    phi = features.evaluate(theta, torch.tensor(X))
    # The same in the eigenbasis of phi phi', where nothing is lost.
    U, s, V = np.linalg.svd(phi.numpy(), full_matrices=True)
    away = features.evaluate(theta, torch.tensor(new)).numpy() @ V.T
    # With fewer features than rows the jitter is the likelihood's alone.
    jitter = model.fit_report_.jitter if n_components >= len(X) else 0.0
    noise, squares = alpha + jitter, np.zeros(V.shape[1])
    squares[: len(s)] = s**2
    assert jitter <= 1e-13 * amplitude
    variance = (away**2 * (noise / (squares + noise))).sum(1)
    weights = np.zeros(V.shape[1])
    weights[: len(s)] = s / (s**2 + noise) * (U.T @ y)[: len(s)]
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, away @ weights, rtol=1e-4, atol=1e-4 * np.abs(mean).max())
    np.testing.assert_allclose(std, np.sqrt(variance), rtol=1e-4, atol=1e-4 * amplitude**0.5)


@pytest.mark.parametrize(
    "model, error, message",
    [
        (RFFRegressor(n_components=0), ValueError, "n_components"),
        (
            RFFRegressor(n_components=10**6, memory_budget=1e8),
            MemoryError,
            r"for example n_components=",
        ),
        (RFFRegressor(PERIODIC), NoSpectralDensity, "ExpSineSquared.*RBF"),
        (SSRFFRegressor(PERIODIC), NoSpectralDensity, "ExpSineSquared.*RBF"),
        (
            RRCGRegressor(PERIODIC, posterior="pathwise"),
            NoSpectralDensity,
            "ExpSineSquared.*use posterior='exact' or 'solve'",
        ),
        (RFFRegressor(RBF(), n_components=10, alpha=0.0), ValueError, "alpha"),
        (SSRFFRegressor(min_components=0), ValueError, "min_components"),
        (SSRFFRegressor(component_step=0), ValueError, "component_step"),
        (
            SSRFFRegressor(min_components=10**6, memory_budget=1e5),
            MemoryError,
            "RFFRegressor|min_components",
        ),
        (
            SSRFFRegressor(min_components=10, component_step=10, truncation=FixedTruncation(3)),
            ValueError,
            r"ReciprocalTruncation\(\)",
        ),
        (
            SSRFFRegressor(
                min_components=10, component_step=10, truncation=ReciprocalTruncation(min_iter=99)
            ),
            ValueError,
            "at most min_iter=12",
        ),
        (SSRFFRegressor(optimizer="lbfgs"), ValueError, "of SSRFFRegressor are noisy: use .*adam"),
        (
            SSRFFRegressor(optimizer="bfgs", small_table="method"),
            ValueError,
            "of SSRFFRegressor are noisy",
        ),
        (SSRFFRegressor(optimizer="natural"), ValueError, "random rows"),
        # Before memory, and where nothing is trained.
        (SSRFFRegressor(optimizer="lbfgs", memory_budget=1.0), ValueError, "are noisy"),
        (SSRFFRegressor(RBF(1.0, "fixed"), optimizer=LBFGS()), ValueError, "are noisy"),
    ],
    ids=str,
)
def test_wrong_settings(model, error, message):
    X, y = table()
    with pytest.raises(error, match=message):
        model.fit(X, y)


def test_the_number_of_features_that_an_error_names_works():
    X, y = table()
    model = RFFRegressor(n_components=10**5, memory_budget=1e7, optimizer=None)
    with pytest.raises(MemoryError) as caught:
        model.fit(X, y)
    fits = int(str(caught.value).rpartition("n_components=")[2].rstrip("."))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(n_components=fits).fit(X, y)


# ---------------------------------------------------------------- what components are


def test_components_are_counted_over_all_products():
    X, y = table()
    kernel = C(1.0) * RBF([1.0, 1.0]) + RationalQuadratic() + C(0.3) + DotProduct() + W(0.1)
    model = RFFRegressor(kernel, n_components=100, optimizer=None, random_state=0).fit(X, y)
    # 25 frequencies for each of two products, then the constant's column and three of DotProduct.
    assert model.coef_.shape == (100 + 1 + 3, 1)
    one = RFFRegressor(n_components=100, optimizer=None, random_state=0).fit(X, y)
    assert one.coef_.shape == (100, 1)
    # Equal rows would be merged into one.
    n, rng = 2001, np.random.default_rng(0)
    X, y = X[rng.integers(len(X), size=n)] + 0.1 * rng.normal(size=(n, 2)), rng.normal(size=n)
    auto = RFFRegressor(n_components="auto", optimizer=None, random_state=0).fit(X, y)
    assert auto.coef_.shape == (700, 1) and auto.fit_report_.choices["n_components"].value == 700


def test_levels_share_their_functions_among_the_products():
    sum_of_two = compile_kernel(RBF() + RationalQuadratic() + W(), 2)
    levels = FeatureLevels(10, None)
    assert levels.n_pairs(6, problem().kernel) == 30
    assert levels.n_pairs(6, sum_of_two) == 15
    assert levels.n_pairs(0, sum_of_two) == 1


def test_single_samples_of_a_sum_are_unbiased():
    ours = problem(kernel=C(0.8) * RBF(1.0) + C(0.5) * RationalQuadratic(0.7, 1.1) + W(0.1))
    levels = FeatureLevels.of(len(ours.X), 8, 4, ReciprocalTruncation())
    values = single_sample_estimates(ours, levels, 40, 100)
    for component, expected in zip(values.T, exact_terms(ours), strict=True):
        assert abs(z_score(component, float(expected))) < 4


# ---------------------------------------------------------------- settings and how fits end


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_truncations_by_name():
    X, y = table(60)
    settings = dict(min_components=10, component_step=10, random_state=0, max_iter=6)
    by_name = SSRFFRegressor(truncation="exponential", **settings)
    assert by_name.get_params()["truncation__rate"] == 0.05
    by_name.set_params(truncation__rate=0.5, truncation__min_iter=2)
    given = SSRFFRegressor(truncation=ExponentialTruncation(0.5, min_iter=2), **settings)
    np.testing.assert_array_equal(by_name.fit(X, y).predict(X), given.fit(X, y).predict(X))
    other = SSRFFRegressor(**settings).fit(X, y)
    assert np.abs(other.predict(X) - given.predict(X)).max() > 1e-6
    with pytest.raises(ValueError, match="Unknown truncation 'magic'.*'reciprocal'"):
        SSRFFRegressor(truncation="magic", **settings).fit(X, y)


@pytest.mark.parametrize("max_iter", ["auto", 100])
def test_a_schedule_that_runs_out_is_completed(max_iter):
    X, y = table(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SSRFFRegressor(
            min_components=20, component_step=20, max_iter=max_iter, random_state=0
        ).fit(X, y)
    assert model.fit_report_.status == "completed" and model.n_iter_ == 100


@pytest.mark.parametrize("Model", [RFFRegressor, SSRFFRegressor])
def test_the_report_says_what_had_no_effect(Model):
    X, y = table(60)
    fixed = Model(optimizer=None, dtype="float32", random_state=0).fit(X, y).fit_report_
    assert fixed.status == "converged" and fixed.n_iter == 0
    assert {"dtype", "learning_rate", "max_iter", "n_iter_no_change"} <= set(fixed.ignored)
    same = Model(optimizer=None, random_state=0).fit(X, y)
    assert same.dtype_ == same.fit_report_.choices["dtype"].value == "float64"
    adam = Model(optimizer="adam", random_state=0).fit(X, y).fit_report_
    assert adam.choices["learning_rate"].value == 0.1 and adam.choices["max_iter"].value == 100
    assert not {"learning_rate", "n_iter_no_change", "max_iter"} & set(adam.ignored)
    given = Model(optimizer=Adam(0.05), random_state=0).fit(X, y).fit_report_
    assert "learning_rate" in given.ignored and "n_iter_no_change" not in given.ignored


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_few_rows_ignore_the_series():
    X, y = table(60)
    few = SSRFFRegressor(max_iter=2, random_state=0).fit(X, y).fit_report_
    assert set(few.ignored) >= {"truncation", "component_step"}
    assert few.choices["min_components"].value is None
    adam = SSRFFRegressor(optimizer="adam", max_iter=2, random_state=0).fit(X, y).fit_report_
    assert set(adam.ignored) >= {"truncation", "component_step", "min_components"}
    model = SSRFFRegressor(min_components=10, component_step=10, max_iter=2, random_state=0)
    assert not model.fit(X, y).fit_report_.ignored


def test_small_tables_are_the_exact_process_by_default():
    X, y = table(60)
    model = SSRFFRegressor(random_state=0).fit(X, y)
    exact = RFFRegressor(random_state=0).fit(X, y)
    assert model.log_marginal_likelihood_value_ == exact.log_marginal_likelihood_value_
    for found, expected in zip(
        model.predict(X, return_std=True), exact.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "n, params, features, series",
    [
        (2_000, {}, None, None),
        (2_000, {"optimizer": "bfgs"}, None, None),
        (2_001, {}, 700, 500),
        (60, {"optimizer": "adam"}, None, 500),
        (200, {"n_components": 40, "min_components": 50}, 40, 50),
    ],
)
def test_plans_draw_features_for_large_tables_or_if_asked(n, params, features, series):
    def known(model):
        return {name: value for name, value in params.items() if name in model().get_params()}

    plan = plan_features(RFFRegressor(**known(RFFRegressor)), n, 3, Machine(), n_params=5)
    assert plan.n_components.value == features and plan.dtype.value == "float64"
    assert ("optimizer" in plan.choices) == (features is not None)
    assert bool(plan.exact_instead) == (features is None)
    plan = plan_series(SSRFFRegressor(**known(SSRFFRegressor)), n, 3, Machine(), n_params=5)
    assert plan.min_components.value == series and (plan.gradient is None) == (series is None)
    # Nothing is truncated on tables without more rows than the first term has functions.
    assert ("truncation" in plan.without_effect) == (series is None or n <= series)
    assert bool(plan.exact_instead) == (series is None)
    assert [need.bytes for need in plan.needs] == [24 * n * n]


def test_time_is_looked_at_between_the_terms_of_a_step():
    """A step has up to three evaluations; none begins after the budget is spent."""
    ours, evaluated = problem(), []

    def spent():
        evaluated.append(1)
        if len(evaluated) == 2:
            raise StopTraining(End.MAX_SECONDS)

    levels = FeatureLevels.of(len(ours.X), 6, 4, ReciprocalTruncation())
    with pytest.raises(StopTraining), watched(spent):
        single_sample_terms(ours, ours.kernel.theta0, levels, generator(1))
    assert len(evaluated) == 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model, module, name",
    [
        (
            RFFRegressor(n_components=20, max_iter=3, random_state=0),
            "models.fourier._rff",
            "feature_weights",
        ),
        (SSRFFRegressor(optimizer=None, random_state=0), "core._exact_process", "ExactPosterior"),
    ],
)
def test_the_last_part_survives_one_interrupt(model, module, name, monkeypatch):
    X, y = table(60)
    expected = clone(model).fit(X, y).predict(X)
    module = sys.modules[f"skscalablegp.{module}"]
    original, calls = getattr(module, name), []

    class Interrupted:
        """Stands for the function or class, and is interrupted at its first use."""

        @staticmethod
        def first():
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt

        def __call__(self, *args, **more):
            self.first()
            return original(*args, **more)

        def of(self, *args):
            self.first()
            return original.of(*args)

    monkeypatch.setattr(module, name, Interrupted())
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, y)
    assert len(calls) == 2 and model.fit_report_.status == "interrupted"
    np.testing.assert_array_equal(model.predict(X), expected)
