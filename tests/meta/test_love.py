"""LOVEPredictor against the exact variances of the regressors below it."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    PoERegressor,
    QSGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    SVGPRegressor,
)
from skscalablegp.core.posteriors import Posterior
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.inducing import InducingPosterior, WhitenedBelief

C, W = ConstantKernel, WhiteKernel


def table(d=2, n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    y = np.sin(6 * X[:, 0]) + X[:, -1] + 0.1 * rng.standard_normal(n)
    return X, y, rng.uniform(size=(50, d))


def kernel():
    return C(1.0) * RBF([0.3, 0.3]) + W(0.01)


def fixed(**params):
    return KISSGPRegressor(kernel(), optimizer=None, **params)


class TestLOVE:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "below", [fixed(grid_size=25, solver="cg"), None], ids=["grid", "rows"]
    )
    def test_error_is_measured_and_falls_with_the_rank(self, below):
        X, y, X_new = table()
        if below is None:
            below = IterativeGPRegressor(fixed().kernel, optimizer=None, solver_tol=1e-6)
        below = below.fit(X, y)
        if isinstance(below, KISSGPRegressor):
            exact = fixed(grid_size=25).fit(X, y).predict_std(X_new) ** 2
        else:
            exact = below.predict_std(X_new) ** 2
        errors = []
        for rank in (5, 20, 60):
            low = LOVEPredictor(
                FrozenEstimator(below), variance_rank=rank, max_variance_rank=rank, variance_tol=1.0
            )
            variance = low.fit(X, y).predict_std(X_new) ** 2
            assert (variance > exact - 1e-6).all()  # a projection errs upwards
            errors.append(np.abs(variance - exact).mean())
            unit = np.mean(y**2)
            assert np.abs(variance - exact).max() <= 2 * low.variance_error_ * unit + 1e-6
            assert low.variance_rank_ == rank
        assert errors[0] > 3 * errors[1] > 9 * errors[2]
        assert low.estimator_ is below

    @pytest.mark.slow
    def test_the_rank_grows_until_the_error_is_small(self):
        X, y, _ = table()
        for below in (
            fixed(grid_size=25, solver="cg"),
            IterativeGPRegressor(fixed().kernel, optimizer=None),
        ):
            low = LOVEPredictor(below, variance_rank=3, variance_tol=1e-5).fit(X, y)
            assert 3 < low.variance_rank_ <= 100 and 0 < low.variance_error_ <= 1e-5

    def test_every_row_is_within_the_tolerance(self):
        """Also on a 20 x 20 grid of rows, where one Krylov space of rank 100 was far off."""
        square = np.stack(np.meshgrid(*[np.linspace(0, 1, 20)] * 2), -1).reshape(-1, 2)
        rng = np.random.default_rng(0)
        new = np.vstack([square, rng.uniform(size=(300, 2))])
        for X in (square, rng.uniform(size=(400, 2))):
            y = np.sin(6 * X[:, 0]) * X[:, 1] + 0.01 * rng.standard_normal(400)
            for length, noise in ((0.1, 1e-4), (0.3, 1e-2)):
                kernel = C(1.0) * RBF(length) + W(noise)
                exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
                exact = exact.predict(new, return_std=True)[1] ** 2
                below = IterativeGPRegressor(kernel, optimizer=None)
                low = LOVEPredictor(below, variance_tol=1e-3, random_state=0).fit(X, y)
                error = np.abs(low.predict_std(new) ** 2 - exact).max()
                assert error <= 1e-3 * np.mean(y**2) and low.variance_error_ <= 1e-3

    def test_exact_variances_are_taken_where_they_cost_no_more(self):
        X, y, X_new = table()
        rows = IterativeGPRegressor(C(100.0) * RBF([2.0, 2.0]) + W(1e-5), optimizer=None)
        for below in (fixed(grid_size=25), rows):
            low = LOVEPredictor(below, variance_rank=150).fit(X, y)
            assert low.variance_error_ == 0 and low._basis is None
            std = low.estimator_.predict_std(X_new)
            np.testing.assert_array_equal(low.predict_std(X_new), std)

    @pytest.mark.parametrize(("first", "most"), [(1, 1), (5, 10), (20, 30), (20, 60)])
    def test_a_small_largest_rank_over_a_factorised_grid(self, first, most):
        """Such a grid has 60 directions, and its exact variances cost no more at any rank."""
        X, y, X_new = table()
        kernel, y = C(1.0) * RBF([0.5, 0.5]) + W(0.01), 1000 + 50 * y
        exact = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(X, y)
        mean, std = exact.predict(X_new, return_std=True)
        below = KISSGPRegressor(
            kernel, optimizer=None, normalize_y=True, small_table="method", random_state=0
        )
        low = LOVEPredictor(below, variance_rank=first, max_variance_rank=most).fit(X, y)
        assert low.variance_rank_ == 60 and low.variance_error_ == 0
        np.testing.assert_allclose(low.predict(X_new), mean, atol=1e-3 * y.std())
        np.testing.assert_allclose(low.predict_std(X_new), std, rtol=1e-3)

    def test_half_of_all_directions_are_followed_by_all(self):
        X, y, X_new = table()
        below = IterativeGPRegressor(C(1e4) * RBF([0.02, 0.02]) + W(1e-4), optimizer=None)
        low = LOVEPredictor(below, variance_rank=20, variance_tol=1e-9).fit(X, y)
        assert low.variance_rank_ == 200 and low.variance_error_ < 1e-5
        exact = GaussianProcessRegressor(below.kernel, optimizer=None).fit(X, y)
        std = exact.predict(X_new, return_std=True)[1]
        np.testing.assert_allclose(low.predict_std(X_new), std, rtol=1e-6)
        # The products of Lanczos leave the regressor below, its factor above all, as it was.
        np.testing.assert_allclose(low.estimator_.predict_std(X_new), std, rtol=1e-6)

    def test_says_when_it_cannot(self):
        X, y, _ = table()
        with pytest.warns(UserWarning, match="above variance_tol=1e-12 at rank 4: raise max_var"):
            low = LOVEPredictor(
                fixed(grid_size=25, solver="cg"),
                variance_rank=4,
                max_variance_rank=4,
                variance_tol=1e-12,
            ).fit(X, y)
        assert low.fit_report_.status == "max_iter"
        assert "raise max_variance_rank" in low.fit_report_.stop_reason

    def test_needs_fast_products(self):
        X, y, _ = table()
        with pytest.raises(TypeError, match="LinearRegression has none: use KISSGP"):
            LOVEPredictor(LinearRegression()).fit(X, y)
        for below in (PoERegressor(), QSGPRegressor(), QSRVMRegressor()):
            below.set_params(callbacks=lambda step: pytest.fail("the fit came first"))
            with pytest.raises(TypeError, match=f"{type(below).__name__} has none"):
                LOVEPredictor(below).fit(X, y)

    def test_the_regressor_gets_what_it_leaves_open(self):
        X, y, _ = table(n=60)
        seen = []
        below = KISSGPRegressor(grid_size=12, callbacks=seen.append)
        low = LOVEPredictor(below, callbacks=lambda step: None, max_seconds=60, random_state=0)
        low.set_params(memory_budget=1e9).fit(X, y)
        assert low.estimator_.callbacks is below.callbacks and low.estimator_.max_seconds is None
        assert low.estimator_.memory_budget == 1e9 and below.memory_budget == "auto"
        stages = low.history_["stage"]
        assert stages[: len(seen)] == ["full"] * len(seen) and stages[-1] == "variances"
        assert low.n_iter_ == low.estimator_.n_iter_ == len(seen)
        assert low.log_marginal_likelihood_value_ == low.estimator_.log_marginal_likelihood_value_
        with pytest.raises(ValueError, match="device='cpu' of LOVE.* contradicts device='cuda' of"):
            LOVEPredictor(KISSGPRegressor(device="cuda"), device="cpu").fit(X, y)

    def test_how_the_regressor_ended_is_said_once(self):
        X, y, _ = table(n=60)
        with pytest.warns(
            ConvergenceWarning, match="^LOVEP.*: KISSGP.*: max_iter=1.*raise"
        ) as said:
            low = LOVEPredictor(KISSGPRegressor(grid_size=12, max_iter=1)).fit(X, y)
        assert len(said) == 1 and low.fit_report_.status == "max_iter"
        with pytest.warns(ConvergenceWarning, match="^LOVEPredictor: the time budget") as said:
            low = LOVEPredictor(KISSGPRegressor(grid_size=12), max_seconds=1e-9).fit(X, y)
        assert len(said) == 1 and low.fit_report_.status == "max_seconds"

    def test_a_frozen_regressor_keeps_its_columns_and_its_noise(self):
        X, y, _ = table(n=60)
        frame = pd.DataFrame(X, columns=["a", "b"])
        love = LOVEPredictor(FrozenEstimator(fixed(grid_size=20).fit(frame, y)))
        with pytest.raises(ValueError, match="feature names"):
            love.fit(frame[["b", "a"]], y)
        with pytest.raises(ValueError, match="1 features, but KISSGPRegressor is expecting 2"):
            LOVEPredictor(FrozenEstimator(fixed(grid_size=20).fit(X, y))).fit(X[:, :1], y)
        with pytest.raises(ValueError, match="pass noise_variance where it is fitted"):
            love.fit(frame, y, noise_variance=0.1)


@pytest.mark.parametrize(
    "below",
    [
        IterativeGPRegressor(optimizer=None),
        IterativeGPRegressor(optimizer=None, solver="cg", solver_tol=1e-8, dtype="float32"),
        RRCGRegressor(optimizer=None),
        SSRFFRegressor(optimizer=None),
        RFFRegressor(optimizer=None, n_components=60),
        KISSGPRegressor(optimizer=None, grid_size=20, solver="cg"),
        SGPRRegressor(optimizer=None, n_inducing=20),
        SVGPRegressor(max_iter=5, n_inducing=20),
        SCGDDKLRegressor(max_epochs=2, feature_extractor=(10,)),
        SCGDDKLRegressor(C() * RBF(), max_epochs=2, feature_extractor=(10,), n_components=40),
    ],
    ids=lambda below: type(below).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_raw_columns_reach_the_regressor_in_its_own_units(below):
    """Columns far from zero, of unequal scale: what a regressor does about them is its own."""
    X, y, X_new = table(n=80)
    unit, origin = np.array([1.0, 100.0]), np.array([5.0, 1000.0])
    X, X_new, y = X * unit + origin, X_new * unit + origin, 10 * y + 1000
    below = below.set_params(normalize_y=True, random_state=0).fit(X, y)
    love = LOVEPredictor(FrozenEstimator(below), variance_rank=100).fit(X, y)
    mean, std = below.predict(X_new, return_std=True)
    np.testing.assert_allclose(love.predict(X_new), mean, rtol=0, atol=1e-4 * np.ptp(y))
    np.testing.assert_allclose(love.predict_std(X_new), std, rtol=0.01)


def inducing(X, y):
    """The collapsed posterior over 30 inducing points (Titsias 2009), from dense algebra."""
    compiled = compile_kernel(kernel(), 2)
    theta, Z = compiled.theta0, torch.from_numpy(X[:30])
    K = compiled.cross(theta, Z, Z) + 1e-10 * torch.eye(30)
    A = torch.linalg.solve_triangular(
        torch.linalg.cholesky(K), compiled.cross(theta, Z, torch.from_numpy(X)), upper=False
    )
    S = torch.linalg.inv(torch.eye(30) + A @ A.T / 0.01)
    belief = WhitenedBelief(S @ A @ torch.from_numpy(y)[:, None] / 0.01, S[None], S.logdet()[None])
    return InducingPosterior(compiled, theta, Z, belief)


class TestWeights:
    """Random features and inducing points: their posteriors are over weights."""

    @staticmethod
    def posterior(name, X, y):
        if name == "inducing points":
            return inducing(X, y)
        return RFFRegressor(kernel(), n_components=60, optimizer=None).fit(X, y)._posterior()

    @pytest.mark.parametrize("name", ["features", "inducing points"])
    def test_variances_tend_to_the_exact_ones_from_above(self, name):
        X, y, X_new = (torch.from_numpy(a) for a in table())
        X, X_new = X - X.mean(0), X_new - X.mean(0)  # as the posterior sees them
        below = self.posterior(name, X.numpy(), y.numpy())
        exact, size = below.variance(X_new), len(below.weights)
        form = below.low_rank_form()
        phi = below.psi(X_new)
        inner = (phi @ torch.linalg.inv(below.precision())) * phi
        rest = 0.0 * exact
        if name == "inducing points":
            rest = torch.as_tensor(kernel().k1.diag(X_new)) - phi.square().sum(1)
            assert float(rest.max()) > 1e-6
        torch.testing.assert_close(inner.sum(1) + rest, exact, rtol=1e-6, atol=1e-9)
        errors = []
        for rank in (3, 10, size // 2):
            (found,) = form.growing(X_new[:20], X, rank, rank)
            variance = found.posterior.variance(X_new)
            assert bool((variance > exact - 1e-9).all()) and found.rank == rank
            errors.append(float((variance - exact).mean()))
        assert errors[0] > 2 * errors[1] and errors[2] < errors[0] / 20
        torch.testing.assert_close(found.posterior.covariance(X_new).diagonal(), variance)
        torch.testing.assert_close(found.posterior.mean(X_new), below.mean(X_new))
        grown = list(form.growing(X_new[:20], X, 3, None))
        ranks = sorted({min(3 * 2**k, size // 2) for k in range(6)})
        assert [made.rank for made in grown] == [*ranks, size]
        assert grown[-1].error == 0 < 1e-5 < grown[0].error

    @pytest.mark.parametrize("name", ["features", "inducing points"])
    @pytest.mark.parametrize("rank", [5, 30])
    def test_samples_have_the_low_rank_covariance(self, name, rank):
        X, y, X_new = (torch.from_numpy(a) for a in table())
        X, X_new = X - X.mean(0), X_new - X.mean(0)  # as the posterior sees them
        below = self.posterior(name, X.numpy(), y.numpy())
        made = next(below.low_rank_form().growing(X_new, X, rank, rank)).posterior
        draws = made.sample(X_new, 20_000, np.random.RandomState(0))[:, 0]
        expected = made.covariance(X_new) + 0.01 * torch.eye(50)
        scale = expected.diagonal().sqrt()
        off = (torch.cov(draws) - expected) / (scale[:, None] * scale)
        assert float(off.abs().max()) < 5 * (2 / 20_000) ** 0.5
        assert float(((draws.mean(1) - below.mean(X_new)[:, 0]) / scale).abs().max()) < 0.04


def test_many_rows_off_the_grid_are_sampled_without_their_covariance(thresholds, monkeypatch):

    X, y, X_new = table()
    low = LOVEPredictor(IterativeGPRegressor(kernel(), optimizer=None), variance_rank=100).fit(X, y)
    mean, cov = low.predict(X_new, return_cov=True)
    direct = low.sample_y(X_new, 4000, random_state=0)
    thresholds(JOINT_ROWS=10)
    monkeypatch.setattr(Posterior, "sample", None)
    draws = low.sample_y(X_new, 4000, random_state=0)
    scale = np.sqrt(np.diag(cov))
    for found in (direct, draws):
        assert np.abs((found.mean(1) - mean) / scale).max() < 0.08
        # Sampling leaves 5 (2 / 4000)^1/2 = 0.11; random features of the prior a little more.
        assert np.abs((np.cov(found) - cov) / np.outer(scale, scale)).max() < 0.15


@pytest.mark.parametrize(
    "below",
    [fixed(grid_size=15, solver="cg"), RFFRegressor(n_components=40), IterativeGPRegressor()],
    ids=["grid", "features", "rows"],
)
def test_a_pickle_answers_alike(below):
    X, y, X_new = table()
    low = LOVEPredictor(below, variance_rank=10, variance_tol=1.0).fit(X, y)
    again = pickle.loads(pickle.dumps(low))
    for a, b in zip(
        low.predict(X_new, return_std=True), again.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.night
@pytest.mark.slow
def test_rank_50_suffices_for_deep_features_of_airfoil(data_folder):
    columns = np.loadtxt(data_folder / "uci" / "airfoil" / "data.csv.gz", delimiter=",")
    test = np.loadtxt(data_folder / "uci" / "airfoil" / "test_mask.csv.gz", delimiter=",")[:, 0] > 0
    columns = (columns - columns[~test].mean(0)) / columns[~test].std(0)
    X, y = columns[:, :-1], columns[:, -1]
    model = KISSGPRegressor(
        feature_extractor=(64, 32, 2), grid_size=40, max_iter=30, random_state=0
    ).fit(X[~test], y[~test])
    model.set_params(solver="cg", optimizer=None)
    low = LOVEPredictor(
        FrozenEstimator(model), variance_rank=50, max_variance_rank=50, variance_tol=1e-3
    )
    low.fit(X[~test], y[~test])
    found = low.predict_std(X[test]) ** 2
    without = model.predict_std(X[test]) ** 2
    assert np.abs(found - without).mean() <= 1e-4 * y[test].var()
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None)
    exact.fit(model.extract_features(X[~test]), y[~test])
    std = exact.predict(model.extract_features(X[test]), return_std=True)[1]
    assert np.abs(found - std**2).mean() <= 5e-3 * y[test].var()
