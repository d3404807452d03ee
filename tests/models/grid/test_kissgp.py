"""KISSGPRegressor against dense algebra and scikit-learn's exact regressor."""

import itertools
import pickle

import numpy as np
import pytest
from inside import clock
from interpolated import dense_grid
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from skscalablegp import KISSGPRegressor, LOVEPredictor

C, W = ConstantKernel, WhiteKernel
# Columns of a product with the Gram matrix of the grid that take all of a budget.
_BUDGET_COLUMNS = 1000


def table(d=2, n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    return (
        X,
        np.sin(6 * X[:, 0]) + X[:, -1] + 0.1 * rng.standard_normal(n),
        rng.uniform(size=(50, d)),
    )


def fixed(d=2, **params):
    kernel = C(1.0) * RBF([0.3] * d if d > 1 else 0.3) + W(0.01)
    return KISSGPRegressor(kernel, optimizer=None, **params)


@pytest.mark.parametrize("d", [1, 2])
def test_tends_to_the_exact_regressor_at_the_cubic_rate(d):
    X, y, X_new = table(d)
    exact = GaussianProcessRegressor(fixed(d).kernel, optimizer=None, alpha=0).fit(X, y)
    mean, std = exact.predict(X_new, return_std=True)
    errors = []
    for size in (15, 25, 45):
        model = fixed(d, grid_size=size, alpha=0).fit(X, y)
        m, s = model.predict(X_new, return_std=True)
        errors.append([np.abs(m - mean).max(), np.abs(s**2 - std**2).max()])
    ratios = np.array(errors[:-1]) / errors[1:]
    assert (ratios.prod(0) ** 0.5 > 5).all() and errors[-1][0] < 2e-4


@pytest.mark.parametrize("structure", ["product", "additive"])
@pytest.mark.parametrize("noise", [None, "by row"])
@pytest.mark.parametrize("spread", [1.0, 1.6])
def test_partial_fit_is_exact(structure, noise, spread, stand_in):
    X, y, X_new = table()
    known = None if noise is None else np.linspace(0.01, 0.5, 200)
    X[150:] = 0.5 + spread * (X[150:] - 0.5)
    first = slice(0, 150)
    model = fixed(grid_size=20, structure=structure)
    model.fit(X[first], y[first], None if known is None else known[first])
    for part in (slice(150, 170), slice(170, 200)):
        model.partial_fit(X[part], y[part], None if known is None else known[part])
    whole = fixed(grid_size=20, structure=structure)
    # On the same grid, which is what the first rows and the spacing made of it.
    stand_in("make_grid", lambda *args: model.grid_)
    whole.fit(X, y, known)
    for a, b in zip(model.predict(X_new, return_std=True), whole.predict(X_new, return_std=True),
                    strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, atol=1e-8)
    assert model.log_marginal_likelihood_value_ == pytest.approx(
        whole.log_marginal_likelihood_value_
    )
    assert model.n_samples_seen_ == 200
    assert model.n_iter_ == 1 and model.fit_report_.status == "converged"


@pytest.mark.exact_input  # the message has the digits of a row
@pytest.mark.parametrize("structure", ["product", "additive"])
def test_outside_the_grid(structure, thresholds):
    # What is cut of the eigenvalues differs between the grids: hardly anything here.
    thresholds("_objective", _CUT_NATS=1e-9, _CUT_VARIANCE=1e-13)
    X, y, _ = table()
    model = fixed(grid_size=20, structure=structure).fit(X, y)
    far = np.array([[1.3, 0.4], [0.2, -0.4], [40.0, 0.5]])
    assert not model.grid_.covers(far).any()
    mean, std = model.predict(far, return_std=True)
    cov = model.predict(np.vstack([far, X[:2]]), return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(cov))[:3], std, rtol=1e-6)
    if structure == "product":
        assert mean[2] == pytest.approx(0, abs=1e-6) and std[2] ** 2 == pytest.approx(
            1.01, rel=2e-3
        )
    # Rows beyond the edge see the same as on a grid that reaches there.
    wider = fixed(grid_size=20, structure=structure).fit(X, y)
    wider.partial_fit(far[:2], [0.0, 0.0], noise_variance=1e12)
    a, b = (m.predict(far[:2], return_std=True) for m in (model, wider))
    np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"3 of 3 rows lie outside the grid, .* \[1.3, 0.4\].*extend"
    ):
        model.set_params(extrapolation="error").predict(far)


@pytest.mark.parametrize("n", [300, 20_000])
def test_without_noise(n):
    X = np.random.default_rng(0).uniform(size=(n, 1))
    y = np.sin(9 * X[:, 0])
    model = KISSGPRegressor(RBF(0.3), optimizer=None).fit(X, y)
    new = np.linspace(0.05, 0.95, 50)[:, None]
    np.testing.assert_allclose(model.predict(new), np.sin(9 * new[:, 0]), atol=1e-5)
    # The jitter is 1e-9 of the prior variance; a little way out nothing else is known.
    exact = GaussianProcessRegressor(RBF(0.3), optimizer=None, alpha=1e-9).fit(X[:300], y[:300])
    out = np.array([[1.02], [-0.05], [1.2], [3.0]])
    mean, std = model.predict(out, return_std=True)
    np.testing.assert_allclose(mean[:2], np.sin(9 * out[:2, 0]), atol=1e-3)
    known = exact.predict(out, return_std=True)[1]
    assert (std < 1.05 * known + 1e-4).all() and std[3] == pytest.approx(1)


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("alpha", [0.0, 1e-10])
@pytest.mark.parametrize("how", ["fit", "partial_fit", "partial_fit by row"])
def test_rows_without_noise_beside_noisy_ones(unit, alpha, how):
    X = np.random.default_rng(0).uniform(size=(50, 1))
    y = unit * np.sin(9 * X[:, 0])
    kernel = C(unit**2) * RBF(0.3)
    known = np.where(np.arange(50) < 25, 0.0, 0.01 * unit**2)
    model = KISSGPRegressor(kernel, alpha=alpha, grid_size=400, optimizer=None)
    if how == "fit":
        model.fit(X, y, known)
    elif how == "partial_fit":
        model.fit(X[:25], y[:25]).partial_fit(X[25:], y[25:], known[25:])
    else:
        model.fit(X[1:30], y[1:30], known[1:30])
        rest = np.r_[0, 30:50]
        model.partial_fit(X[rest], y[rest], known[rest])
    new = np.linspace(0.1, 0.9, 20)[:, None]
    # The same jitter.
    alpha = known + 1e-9 * unit**2
    exact = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, y)
    np.testing.assert_allclose(model.predict(new), exact.predict(new), atol=1e-4 * unit)
    np.testing.assert_allclose(
        model.predict_std(new), exact.predict(new, return_std=True)[1], atol=1e-4 * unit
    )
    assert model.fit_report_.jitter == pytest.approx(1e-9 * unit**2, rel=0.2)
    # Rows that interpolation cannot reproduce weigh in at 1e9: the value is loose.
    assert np.isfinite(model.log_marginal_likelihood_value_)


def test_covariances_of_rows_inside_and_outside_the_grid():
    X, y, new = table(1)
    new[::2] += 1
    models = [fixed(1, solver=solver).fit(X, y) for solver in ("cg", "cholesky")]
    noise_free = KISSGPRegressor(RBF(0.3), optimizer=None).fit(X, np.sin(9 * X[:, 0]))
    for model in (*models, noise_free):
        cov = model.predict(new, return_cov=True)[1]
        inside = model.grid_.covers(new)
        assert 0 < inside.sum() < 50
        assert np.linalg.eigvalsh(cov).min() > -1e-9
        np.testing.assert_allclose(np.diag(cov) ** 0.5, model.predict_std(new), atol=1e-6)
        alone = model.predict(new[inside], return_cov=True)[1]
        np.testing.assert_allclose(cov[np.ix_(inside, inside)], alone, atol=1e-8)
    # Against scikit-learn, up to interpolation.
    products, exact = (model.predict(new, return_cov=True)[1] for model in models)
    np.testing.assert_allclose(products, exact, atol=2e-4)
    reference = GaussianProcessRegressor(fixed(1).kernel, optimizer=None).fit(X, y)
    np.testing.assert_allclose(exact, reference.predict(new, return_cov=True)[1], atol=1e-4)


@pytest.mark.parametrize("far", [1e9, 1e20, -1e30, 1e30])
def test_rows_far_away(far):
    X, y, _ = table(1)
    model = fixed(1).fit(X, y)
    new = np.array([[1.1], [far]])
    mean, std = model.predict(new, return_std=True)
    assert mean[1] == 0 and std[1] == pytest.approx(1.01**0.5)
    near = model.predict(new[:1], return_std=True)
    np.testing.assert_allclose([mean[0], std[0]], np.ravel(near), rtol=1e-12)
    with pytest.raises(MemoryError, match="grid extended to the new rows.*leave out rows far away"):
        model.partial_fit([[far]], [0.0])
    np.testing.assert_array_equal(model.predict(new), mean)


def test_known_noise_of_targets_of_different_scales():
    X, y, _ = table()
    Y = np.stack([y, 3 * y], 1)
    model = fixed(grid_size=20, normalize_y=True).fit(X, Y)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="2 different scales"):
            method(X, Y, noise_variance=0.1)


def test_few_rows_do_without_what_many_share(thresholds):
    X, y, new = table(3)
    models = [fixed(3, grid_size=12).fit(X, y) for _ in range(2)]
    shared = models[0].predict_std(new)
    thresholds(_SHARED_PRODUCTS=0)
    np.testing.assert_allclose(models[1].predict_std(new), shared, rtol=1e-9)
    caches = [vars(model._posterior()) for model in models]
    assert ["_variance_polynomials" in cache for cache in caches] == [True, False]


def test_budget_counts_the_rank_before_rows_are_read(stand_in):
    X, y, _ = table(1)
    stand_in("summed", None, at="_kissgp")
    model = KISSGPRegressor(C(1.0) * RBF(0.01) + W(0.01), grid_size=400, memory_budget=2**20)
    with pytest.raises(MemoryError, match="400 points whose covariance has rank.*budget is 1.0 M"):
        model.fit(X, y)


def test_budget_counts_rows_outside_the_grid():
    X, y, _ = table()
    model = fixed(grid_size=20).fit(X, y)
    model.set_params(memory_budget=2**20)
    new = np.full((300, 2), 0.5)
    model.sample_y(new)
    new[0] = 2.0
    with pytest.raises(MemoryError, match="sample_y for 300 rows, 1 of them outside"):
        model.sample_y(new)
    with pytest.raises(MemoryError, match="return_cov=True for 300 rows, 1 of them outside"):
        model.predict(new, return_cov=True)


def test_samples_have_the_posterior_covariance():
    X, y, X_new = table()
    model = fixed(grid_size=20).fit(X, y)
    draws = model.sample_y(X_new, 20_000, random_state=0)
    mean, cov = model.predict(X_new, return_cov=True)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(draws), cov, atol=2e-3)
    # The components that samples are made of leave out a millionth of the variance.
    posterior = model._posterior()
    S, scale = posterior._sampling_root
    left_out = posterior.root.square().sum() - (scale * S.double()).square().sum()
    assert abs(left_out) < 2e-6 * posterior.root.square().sum()
    assert S.shape[1] < posterior.root.shape[1]


def test_samples_of_targets_of_any_size():
    X, y, X_new = table()
    Y = np.stack([y, 2 - 3 * y], 1)
    for unit in (1e-12, 1e29):
        model = fixed(grid_size=20, normalize_y=True).fit(X, unit * Y)
        mean, std = model.predict(X_new, return_std=True)
        draws = model.sample_y(X_new, 4000, random_state=0)
        assert draws.shape == (50, 2, 4000)
        np.testing.assert_allclose(draws.mean(2), mean, atol=0.1 * unit)
        np.testing.assert_allclose(draws.std(2), std, rtol=0.1)


def test_likelihood_and_training():
    X, y, _ = table()
    model = KISSGPRegressor(grid_size=20, normalize_y=False).fit(X, y)
    theta = model.kernel_.theta
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_)
    assert np.abs(gradient).max() < 1
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(X, y)
    assert value == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.5)
    with pytest.raises(ValueError, match="noise variances that differ from row to row"):
        fixed(grid_size=20).fit(X, y, np.linspace(0.1, 1, 200)).log_marginal_likelihood(theta)


@pytest.mark.slow
def test_deep_features():
    X, y, X_new = table(5, 300)
    model = KISSGPRegressor(feature_extractor=(16, 1), random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.grid_.n_features == 1
    # Features end where the grid does, wherever a row may lie.
    assert model.grid_.covers(model.extract_features(1e6 * np.vstack([X_new, -X_new]))).all()
    model.partial_fit(X_new, np.zeros(50))
    for wrong, message in [((8, 3), "end in 1 or 2"), ((8.5, 1), "positive int"), ((), "end in")]:
        with pytest.raises(ValueError, match=message):
            KISSGPRegressor(feature_extractor=wrong).fit(X, y)


@pytest.mark.parametrize(
    ("d", "params", "error", "message"),
    [
        (
            6,
            {"structure": "product"},
            MemoryError,
            "6 columns.*points.*additive.*feature_extractor",
        ),
        (2, {"kernel": Matern()}, ValueError, "not a product over columns.*additive"),
        (2, {"kernel": DotProduct()}, ValueError, "not stationary"),
        (2, {"grid_size": [9, 9, 9]}, ValueError, "one for each of the 2 columns"),
        (2, {"grid_size": [9, 3]}, ValueError, "at least 6"),
    ],
)
def test_wrong_input(d, params, error, message):
    X, y, _ = table(d)
    with pytest.raises(error, match=message):
        KISSGPRegressor(**params, memory_budget=2**32).fit(X, y)


def test_constant_columns_are_named():
    X, y, _ = table()
    X[:, 1] = 3.0
    with pytest.warns(UserWarning, match=r"Constant columns.*\[1\]"):
        KISSGPRegressor(structure="product").fit(X, y)
    with pytest.raises(ValueError, match="All columns of X are constant"):
        KISSGPRegressor(structure="product").fit(np.ones((5, 2)), np.arange(5.0))


def test_a_failed_partial_fit_changes_nothing():
    X, y, X_new = table()
    model = fixed(grid_size=20).fit(X, y)
    before, state = model.predict(X_new), dict(vars(model))
    for wrong, error in ((X + np.nan, ValueError), (X + 1e9, MemoryError)):
        with pytest.raises(error):
            model.partial_fit(wrong, y)
        assert vars(model) == state
        np.testing.assert_array_equal(model.predict(X_new), before)


def test_time_ends_the_network():
    X, y, X_new = table(5, 300)
    with pytest.warns(ConvergenceWarning, match="max_seconds=0.01"):
        model = KISSGPRegressor(feature_extractor=(64, 2), max_seconds=0.01).fit(X, y)
    assert model.n_iter_ < 300 and set(model.history_["stage"]) == {"network"}
    assert np.isfinite(model.predict(X_new)).all()
    assert np.abs(model.extract_features(X_new)).max() < 1


def learnable(n, noise, d=6):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, np.sin(X[:, 0]) + noise * rng.standard_normal(n)


def cut_at(readings, X, y, **settings):
    """A fit whose clock reads one second more each time."""
    ticks = itertools.count()
    model = KISSGPRegressor(feature_extractor=(32, 2), random_state=0, **settings)
    with clock(lambda: float(next(ticks))), pytest.warns(ConvergenceWarning, match="max_seconds"):
        return model.set_params(max_seconds=readings).fit(X, y)


def test_a_network_that_time_ends_leaves_time_for_the_noise():
    """The noise is learned, and standard deviations are those of the errors in new rows."""
    X, y = learnable(900, 0.4)
    model = cut_at(700, X[:500], y[:500])
    assert 1 < model.n_iter_ < 700
    # It is none of the levels that are compared, because a few steps have followed.
    levels = np.array([1.0, 0.1, 0.01]) * np.var(y[:500]) / model._y_train_std**2
    assert np.abs(np.log(model.kernel_.k2.noise_level / levels)).min() > 0.1
    mean, std = model.predict(X[500:], return_std=True)
    assert 0.6 < np.mean(np.square((y[500:] - mean) / std)) < 1.6
    assert np.mean(std) < 0.9 * np.std(y)


def test_the_noise_at_a_cut_is_that_of_rows_the_network_has_not_seen():
    """Nothing is left for steps. Rows that it knows by heart ask for a tenth of this noise."""
    X, y = learnable(420, 1.0, 10)
    readings = itertools.count()
    model = KISSGPRegressor(feature_extractor=(64, 2), random_state=0, max_seconds=1e6)
    late = clock(lambda: 0.0 if next(readings) < 700 else 1e9)
    with late, pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, y)
    assert set(model.history_["stage"]) == {"network"} and model.kernel_.k2.noise_level > 0.5


def test_nothing_is_trained_after_an_interrupt_of_the_network():
    def interrupt(step):
        if step.stage == "network":
            raise KeyboardInterrupt

    X, y = learnable(500, 0.2)
    model = KISSGPRegressor(feature_extractor=(32, 2), random_state=0, callbacks=interrupt)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, y)
    assert set(model.history_["stage"]) == {"network"}
    # The likelihood has chosen between three levels of noise.
    assert model.kernel_.k2.noise_level < 0.9 * np.var(y)


def test_a_module_takes_the_place_of_layers():
    import torch

    X, y, X_new = table(3, 100)
    given = torch.nn.Linear(3, 1)
    kept = given.weight.detach().clone()
    for network in (given, lambda d: torch.nn.Linear(d, 1)):
        model = KISSGPRegressor(feature_extractor=network, max_epochs=20).fit(X, y)
        assert model.extract_features(X_new).shape == (50, 1)
    assert torch.equal(given.weight, kept)
    assert "activation" in model.fit_report_.ignored


@pytest.mark.parametrize("size", [20, 60])
def test_intervals_without_noise_cover_what_interpolation_misses(size):
    rng = np.random.default_rng(0)
    X, X_new = rng.uniform(size=(300, 1)), rng.uniform(0.05, 0.95, size=(300, 1))
    model = KISSGPRegressor(C() * RBF(0.3), grid_size=size).fit(X, np.sin(9 * X[:, 0]))
    mean, cov = model.predict(X_new, return_cov=True)
    std = model.predict_std(X_new)
    error = np.abs(np.sin(9 * X_new[:, 0]) - mean)
    assert np.mean(error < 1.96 * std) > 0.88 and std.mean() < 3 * error.max()
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    assert pickle.loads(pickle.dumps(model)).predict_std(X_new) == pytest.approx(std)


class TestProducts:
    """solver="cg" against the factor, which is exact."""

    @pytest.mark.parametrize(
        "structure, known",
        [
            ("product", "by row"),
            ("additive", None),
            pytest.param("product", None, marks=pytest.mark.slow),
            pytest.param("additive", "by row", marks=pytest.mark.slow),
        ],
    )
    def test_predictions_and_gradients(self, structure, known, thresholds):
        # So many random vectors leave an error of one or two nats.
        thresholds(_PROBES=400)
        X, y, X_new = table()
        Y = np.stack([y, 2 - y], 1)
        noise = None if known is None else np.linspace(0.01, 0.1, 200)
        new = np.vstack([X_new, X_new + 0.3])
        exact, products = (
            fixed(grid_size=12, structure=structure, solver=solver, random_state=0).fit(X, Y, noise)
            for solver in ("cholesky", "cg")
        )
        for method in ("predict", "predict_std"):
            ours, theirs = (getattr(model, method)(new) for model in (products, exact))
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        covariances = [model.predict(new, return_cov=True)[1] for model in (products, exact)]
        np.testing.assert_allclose(*covariances, atol=1e-5)
        value, expected = (m.log_marginal_likelihood_value_ for m in (products, exact))
        error = products.log_marginal_likelihood_std_error_
        assert abs(value - expected) < 3 * error < 7
        assert exact.log_marginal_likelihood_std_error_ == 0
        # Rows that are added bring no random vectors along, so that there is no estimate.
        products.partial_fit(X[:5], Y[:5], None if noise is None else noise[:5])
        assert np.isnan(products.log_marginal_likelihood_value_)
        assert np.isnan(products.log_marginal_likelihood_std_error_)

    @pytest.mark.parametrize(
        "known",
        [pytest.param(np.full(150, 0.02), marks=pytest.mark.slow), np.linspace(0, 0.1, 150)],
    )
    def test_gradients_and_values_are_right_on_average(self, known, thresholds):
        import torch

        from skscalablegp.core.data import Table
        from skscalablegp.linalg.gradients import GradientState
        from skscalablegp.models.grid import (
            GridProblem,
            NoiseByRow,
            ProductGradient,
            RowProbes,
            evaluate_products,
            grid_marginal_likelihood,
        )

        X, y, _ = table(n=150)
        below = fixed(grid_size=9).fit(X, y)._posterior()
        kernel, theta = below.grid_kernel, below.theta
        read = Table(X, y, np.zeros(()), np.ones(()), known)
        rows = NoiseByRow(kernel.grid, read)
        thresholds(_PROBES=40)
        grads, values, errors = [], [], []
        for seed in range(20):
            probes = RowProbes(kernel.grid, read, torch.Generator().manual_seed(seed))
            problem = GridProblem.make(kernel, rows, 150, probes)
            grads.append(ProductGradient().estimate(problem, theta, GradientState())[0].grad)
            evaluation = evaluate_products(problem, theta)
            values.append(evaluation.value)
            errors.append(evaluation.std_error)
        exact = grid_marginal_likelihood(problem, theta)
        found = torch.stack([*torch.stack(grads).T, torch.tensor(values)])
        error = found.std(1) / 20**0.5
        assert bool(((found.mean(1) - torch.cat([exact.grad, torch.tensor([exact.value])])).abs()
                     < 4 * error + 1e-3).all())  # fmt: skip
        # The reported error is that of one value: 20 values give it to about a sixth.
        assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.5)
        # The reference is dense algebra over the rows, which knows nothing of grids.
        H = kernel.grid.interpolate(X) @ dense_grid(kernel, theta).numpy()
        H = H @ kernel.grid.interpolate(X).toarray().T + np.diag(known + 0.01)
        dense = multivariate_normal(np.zeros(150), H).logpdf(y)
        assert exact.value == pytest.approx(dense, rel=1e-6)
        assert abs(np.mean(values) - dense) < 4 * np.mean(errors) / 20**0.5

    def test_few_lanczos_steps_are_in_the_error(self, thresholds):
        X, y, _ = table()
        exact = fixed(grid_size=12).fit(X, y).log_marginal_likelihood_value_
        thresholds(_PROBES=400)
        errors = []
        for steps in (3, 40):
            thresholds(_QUADRATURE=steps)
            model = fixed(grid_size=12, solver="cg", random_state=0).fit(X, y)
            errors.append(model.log_marginal_likelihood_std_error_)
            assert abs(model.log_marginal_likelihood_value_ - exact) < 3 * errors[-1]
        assert errors[0] > 5 * errors[1]

    @pytest.mark.parametrize(
        "first, rest, low_rank",
        [
            (400, 1e-6, True),
            (16, 1e-3, False),
            pytest.param(400, 1e-6, False, marks=pytest.mark.slow),
            pytest.param(16, 1e-3, True, marks=pytest.mark.slow),
        ],
    )
    def test_roots_of_long_axes_have_the_covariance(self, low_rank, first, rest, thresholds):
        """S S' against dense algebra, with all directions and with as many as the trace asks for.

        A doubling that adds less than 1e-4 of the trace is the last.
        """
        import torch

        from skscalablegp.models.grid._product_posterior import ProductPosterior

        thresholds(_SAMPLE_RANK=first)
        X, y, _ = table(1)
        kernel = C(1.0) * RBF(0.05) + W(0.01)
        model = KISSGPRegressor(kernel, optimizer=None, grid_size=300, solver="cg").fit(X, y)
        posterior = model._posterior()
        grid = posterior.grid_kernel.grid
        K = RBF(0.05)(grid.components[0][0].points[:, None])
        Wt = grid.interpolate(X).toarray().T
        A = Wt @ np.linalg.solve(Wt.T @ K @ Wt + 0.01 * np.eye(len(X)), Wt.T)
        if low_rank:
            values, vectors = np.linalg.eigh(A)
            D = vectors[:, -40:] * np.sqrt(values[-40:])
            A = D @ D.T
            posterior = ProductPosterior(
                posterior.grid_kernel, posterior.theta, posterior.evaluation, torch.from_numpy(D)
            )
        S = posterior._range_root().double().numpy()
        assert (S.shape[1] == len(K)) == (first == 400)
        covariance = K - K @ A @ K
        error = covariance - S @ S.T
        assert np.linalg.norm(error, 2) < rest * np.linalg.norm(covariance, 2)
        # A Nystrom approximation never exceeds the covariance.
        assert np.linalg.eigvalsh(error).min() > -1e-5

    def test_solves_that_do_not_end_are_said(self):
        X, y, X_new = table()
        model = KISSGPRegressor(C() * RBF(0.1) + W(1e-9), grid_size=30, optimizer=None)
        model.set_params(solver="cg")
        with pytest.warns(ConvergenceWarning, match="linear solves did not.*solver='cholesky'"):
            model.fit(X, y)
        assert model.fit_report_.status == "max_iter" and model.fit_report_.n_unconverged == 1
        with pytest.warns(ConvergenceWarning, match="linear solves.*solver='cholesky'"):
            model.predict_std(X_new[:3])

    def test_variances_with_little_noise(self):
        """Dense algebra over the rows; LOVE needs a reference with smaller errors than its own."""
        X, y, X_new = table(n=1500)
        X, new = 0.5 * X, np.vstack([0.5 * X_new, 0.5 + 0.5 * X_new])
        kernel = C(3.0) * RBF([0.6, 0.9]) + W(1e-4)
        model = KISSGPRegressor(kernel, optimizer=None, grid_size=25, solver="cg", alpha=0)
        model.fit(np.vstack([X, np.ones((1, 2))]), np.append(y, 0.0), np.append(0 * y, 1e8))
        grid_kernel = model._posterior().grid_kernel
        K = dense_grid(grid_kernel, model._posterior().theta).numpy()
        W_train, W_new = (grid_kernel.grid.interpolate(rows).toarray() for rows in (X, new))
        H = W_train @ K @ W_train.T + 1e-4 * np.eye(1500)
        cross = W_train @ K @ W_new.T
        expected = W_new @ K @ W_new.T - cross.T @ np.linalg.solve(H, cross)
        _, cov = model.predict(new, return_cov=True, noise_variance=0.0)
        std = model.predict_std(new, include_noise=False)
        variances = np.diag(expected)
        assert variances.min() < 1e-5 and variances.max() > 0.1
        np.testing.assert_allclose(std**2, variances, rtol=1e-3, atol=1e-8)
        np.testing.assert_allclose(cov - 1e-4 * np.eye(100), expected, rtol=1e-3, atol=1e-7)
        low = LOVEPredictor(FrozenEstimator(model)).fit(X, y)
        assert low.variance_error_ < 1e-8 and low.variance_rank_ < 60

    @pytest.mark.slow
    def test_residuals_that_rounding_puts_out_of_reach_are_not_said(self):
        """At a relative residual of 1e-8 the solve has ended, whatever the absolute one is."""
        X, y, X_new = table(n=400)
        kernel = C(1.0) * RBF([0.2, 0.3]) + W(5e-5)
        made = [
            KISSGPRegressor(kernel, optimizer=None, grid_size=30, solver=solver).fit(X, y)
            for solver in ("cg", "cholesky")
        ]
        solves = [model.fit_report_.status for model in made]
        assert solves == ["converged", "converged"]
        ours, theirs = (model.predict_std(X_new, include_noise=False) for model in made)
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-4)

    def test_samples_have_the_posterior_covariance(self):
        X, y, X_new = table()
        model = fixed(grid_size=20, solver="cg").fit(X, y)
        low = LOVEPredictor(FrozenEstimator(model)).fit(X, y)
        assert 0 < low.variance_error_ < 1e-4 and low.variance_rank_ < 200
        cov = fixed(grid_size=20).fit(X, y).predict(X_new, return_cov=True)[1]
        for sampler in (model, low):
            draws = sampler.sample_y(X_new, 20_000, random_state=0)
            np.testing.assert_allclose(np.cov(draws), cov, atol=2e-3)

    @pytest.mark.slow
    def test_samples_without_memory_for_a_factor_of_the_prior(self, stand_in):
        X, y, X_new = table()
        model = fixed(grid_size=20, solver="cg").fit(X, y)
        cov = model.predict(X_new, return_cov=True)[1]

        def refuse(*_):
            raise MemoryError("too large")

        stand_in("GridKernel.factor", refuse)
        draws = model.sample_y(X_new, 20_000, random_state=0)
        np.testing.assert_allclose(np.cov(draws), cov, atol=2e-3)

    @pytest.mark.slow
    def test_no_factor_is_made(self, stand_in):
        X, y, X_new = table()
        stand_in("GridKernel.factor", None)
        model = KISSGPRegressor(grid_size=12, solver="cg", max_iter=40, random_state=0).fit(X, y)
        assert model.score(X, y) > 0.9 and model.fit_report_.grid_rank is None
        with pytest.raises(ValueError, match="solver='ap' is unknown on a grid"):
            KISSGPRegressor(solver="ap").fit(X, y)


@pytest.mark.slow
def test_four_columns_have_eight_points_each():
    X, y, _ = table(4, 60)
    model = KISSGPRegressor(structure="product", optimizer=None).fit(X, y)
    assert model.grid_.shapes == [(8, 8, 8, 8)]


@pytest.mark.slow
def test_a_network_begins_with_the_columns_that_matter():
    """With equal first weights it explains 0.3 of the test variance after these steps."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_800, 25))
    y = np.sin(3 * X[:, 3]) + X[:, 7] + 0.1 * rng.standard_normal(len(X))
    model = KISSGPRegressor(feature_extractor=(32, 2), max_epochs=200, random_state=0)
    assert model.fit(X[:1_200], y[:1_200]).score(X[1_200:], y[1_200:]) > 0.6


@pytest.mark.seldom("3")
@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
def test_products_with_the_grid_end_by_the_budget(d, stand_in):
    """Each product takes time by the number of its columns; 20,000 short waves need a rank whose
    one evaluation would take many times the budget."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, d))
    y = np.sin(6 * X.sum(1)) + 0.3 * rng.standard_normal(len(X))
    seconds = [0.0]

    def slow(self, V):
        # A reading of the clock must see that a block of columns took its time.
        seconds[0] += 5.0 * V.shape[1] / _BUDGET_COLUMNS
        return product(self, V)

    product = stand_in("SparseMatrix.__matmul__", slow)
    kernel = C(1.0) * RBF([0.1 if d == 2 else 1.5] * d) + W(0.1)
    model = KISSGPRegressor(kernel, max_seconds=5.0, random_state=0)
    with clock(lambda: seconds[0]), pytest.warns(ConvergenceWarning, match="max_seconds leaves"):
        model.fit(X, y)
    assert seconds[0] < 1.2 * 5.0
    assert model.fit_report_.grid_rank < _BUDGET_COLUMNS
    mean, std = model.predict(X[:200], return_std=True)
    again = pickle.loads(pickle.dumps(model)).predict(X[:200], return_std=True)
    np.testing.assert_allclose(again[0], mean, rtol=1e-6)
    np.testing.assert_allclose(again[1], std, rtol=1e-6)
