"""The numbers in the displays' artists against independent computations."""

import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skscalablegp import (
    AutoGPClassifier,
    AutoGPRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    PoERegressor,
    QSRVMRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SVGPClassifier,
    SVGPRegressor,
    inspection,
)
from skscalablegp.inspection import (
    IntervalCalibrationDisplay,
    LeaderboardDisplay,
    PosteriorDisplay,
    PredictionIntervalDisplay,
    RelevanceDisplay,
    TrainingDisplay,
)
from skscalablegp.kernels import Columns
from skscalablegp.likelihoods import StudentT
from skscalablegp.metrics import nlpd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KERNEL = ConstantKernel(1.0) * RBF([0.5, 2.0, 40.0]) + WhiteKernel(0.02)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (140, 3)) * [1, 1, 5] + [0, 3, -2]
    y = np.sin(4 * X[:, 0]) + 0.3 * X[:, 1] + 0.15 * rng.standard_normal(140)
    return X, y


@pytest.fixture(scope="module")
def gp(data):
    X, y = data
    return IterativeGPRegressor(KERNEL, optimizer=None, normalize_y=True).fit(X[:60], y[:60])


@pytest.fixture(scope="module")
def student(data):
    X, y = data
    model = SVGPRegressor(
        KERNEL, likelihood=StudentT(3.0), n_inducing=15, max_iter=2, random_state=0
    )
    return model.fit(X[:60], y[:60])


def gaussian_pit(model, X, y):
    mean, std = model.predict(X, return_std=True)
    return stats.norm.cdf(y, mean, std)


def heights(bars):
    return np.array([bar.get_height() for bar in bars])


def widths(bars):
    return np.array([bar.get_width() for bar in bars])


class TestIntervalCalibration:
    def check(self, display, pit, n_bins):
        found, edges = np.histogram(pit, bins=n_bins, range=(0, 1), density=True)
        assert_allclose(heights(display.bars_), found, atol=1e-12)
        assert_allclose([bar.get_x() for bar in display.bars_], edges[:-1], atol=1e-12)
        levels, shares = display.line_.get_data()
        assert {0.95, 0.99} <= set(np.round(levels, 12)) and (np.diff(levels) > 0).all()
        assert_allclose(shares, [(abs(2 * pit - 1) <= level).mean() for level in levels])

    def test_pit_and_coverage_of_a_normal_model(self, data, gp):
        X, y = (part[60:] for part in data)
        display = IntervalCalibrationDisplay.from_estimator(gp, X, y, n_bins=10)
        self.check(display, gaussian_pit(gp, X, y), 10)
        assert display.figure_ is display.ax_[0].figure and display.name == "IterativeGPRegressor"

    def test_students_t_is_asked_for_its_own_distribution(self, data, student):
        X, y = (part[60:] for part in data)
        # f is normal and the noise Student's t: the integral over f by Gauss-Hermite quadrature.
        mean, std = student.predict(X), student.predict_std(X, include_noise=False)
        df = student.likelihood_.df
        scale = np.sqrt((student.predict_std(X) ** 2 - std**2) * (df - 2) / df)
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        f = mean[:, None] + std[:, None] * nodes
        below = stats.t.cdf((y[:, None] - f) / scale[:, None], df)
        pit = below @ (weights / weights.sum())
        assert abs(pit - gaussian_pit(student, X, y)).max() > 0.02
        display = IntervalCalibrationDisplay.from_estimator(student, X, y, n_bins=8)
        self.check(display, pit, 8)
        found, _ = np.histogram(gaussian_pit(student, X, y), bins=8, range=(0, 1), density=True)
        # A row in another bin changes two bars by this much.
        assert abs(heights(display.bars_) - found).max() > 0.99 * 8 / len(y)

    def test_any_quantiles(self):
        rng = np.random.default_rng(0)
        y = rng.exponential(size=500)
        q = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
        quantiles = np.tile(stats.expon.ppf(q), (500, 1))
        display = IntervalCalibrationDisplay.from_predictions(y, quantiles, q=q)
        edges = [0, *stats.expon.ppf(q), np.inf]
        counts = [((y > a) & (y <= b)).sum() for a, b in zip(edges, edges[1:], strict=False)]
        assert_allclose(heights(display.bars_), np.array(counts) / 500 / np.diff([0, *q, 1]))
        assert_allclose(display.levels, [0.5, 0.8])
        low, high = stats.expon.ppf([0.1, 0.9])
        assert_allclose(display.coverage[1], ((y >= low) & (y <= high)).mean())

    def test_the_band_is_binomial(self):
        display = IntervalCalibrationDisplay.from_predictions(
            np.arange(40.0), np.tile([9.5, 19.5, 29.5], (40, 1)), q=[0.25, 0.5, 0.75], kind="pit"
        )
        band = display.ax_.collections[0].get_paths()[0].vertices[:, 1]
        low, high = stats.binom.interval(0.95, 40, 0.25)
        assert_allclose([band.min(), band.max()], [low / 10, high / 10])
        assert display.line_ is None and heights(display.bars_).tolist() == [1, 1, 1, 1]

    def test_one_target_of_several_and_known_noise(self, data):
        X, y = data
        Y = np.column_stack([y, X[:, 0] - y])
        model = MultiOutputRegressor(IterativeGPRegressor(KERNEL, optimizer=None))
        model.fit(X[:60], Y[:60])
        rest = X[60:], Y[60:]
        display = IntervalCalibrationDisplay.from_estimator(
            model, *rest, target=1, n_bins=5, noise_variance=0.3
        )
        mean, std = model.estimators_[1].predict(X[60:], return_std=True)
        pit = stats.norm.cdf(Y[60:, 1], mean, np.sqrt(std**2 + 0.3))
        self.check(display, pit, 5)
        with pytest.raises(ValueError, match="target must be .* 2 targets.* got None"):
            IntervalCalibrationDisplay.from_estimator(model, *rest)

    def test_through_search_pipeline_and_transform(self, data):
        X, y = data
        search = GridSearchCV(
            make_pipeline(StandardScaler(), IterativeGPRegressor(KERNEL, optimizer=None)),
            {"iterativegpregressor__alpha": [1e-6, 0.1]},
            cv=2,
        )
        model = TransformedTargetRegressor(search, func=np.log, inverse_func=np.exp)
        model.fit(X[:60], np.exp(y[:60]))
        display = IntervalCalibrationDisplay.from_estimator(model, X[60:], np.exp(y[60:]), n_bins=4)
        best = model.regressor_.best_estimator_
        mean, std = best[-1].predict(best[0].transform(X[60:]), return_std=True)
        self.check(display, stats.norm.cdf(y[60:], mean, std), 4)

    @pytest.mark.parametrize(
        "wrong, says",
        [
            (dict(q=[0.5, 0.2]), "q must increase"),
            (dict(q=[0.0, 0.2]), "q must lie strictly"),
            (dict(q=[0.2]), "quantiles must have shape"),
            (dict(quantiles=np.ones((4, 2)) * [2, 1]), "quantiles cross in 4 of 4 rows"),
            (dict(quantiles=np.full((4, 2), np.nan)), "quantiles must not contain NaN"),
            (dict(y_true=np.ones(3)), "y_true must have a value for each of 4"),
            (dict(y_true=["a"] * 4), "y_true must be an array of numbers"),
            (dict(kind="nonsense"), "kind must be one or several of 'coverage', 'pit'"),
            (dict(kind=["pit", "pit"]), "kind must be"),
            (dict(kind=3), "kind must be"),
            (dict(ax="nonsense"), "ax must be 2 matplotlib Axes"),
            (dict(target=1), "target must be"),
        ],
    )
    def test_wrong_input(self, wrong, says):
        good = dict(y_true=np.ones(4), quantiles=np.ones((4, 2)) * [1, 2], q=[0.2, 0.8])
        with pytest.raises(ValueError, match=says):
            IntervalCalibrationDisplay.from_predictions(**good | wrong)

    def test_who_has_no_quantiles(self, data, gp):
        X, y = data
        with pytest.raises(TypeError, match="LinearRegression.predict has no return_std"):
            IntervalCalibrationDisplay.from_estimator(LinearRegression().fit(X, y), X, y)
        with pytest.raises(ValueError, match="n_bins must be an integer of at least 2"):
            IntervalCalibrationDisplay.from_estimator(gp, X, y, n_bins=1)


class TestPredictionIntervals:
    def test_rows_in_order_with_their_intervals(self, data, gp):
        X, y = (part[60:] for part in data)
        _, ax = plt.subplots()
        display = PredictionIntervalDisplay.from_estimator(
            gp, X, y, coverage=0.8, subsample=None, ax=ax, interval_kwargs={"step": None}
        )
        mean, std = gp.predict(X, return_std=True)
        order = np.argsort(mean)
        assert_allclose(display.line_.get_ydata(), mean[order])
        half = stats.norm.ppf(0.9) * std[order]
        corners = display.interval_.get_paths()[0].vertices
        for k in range(len(y)):
            found = np.unique(corners[corners[:, 0] == k, 1].round(9))
            assert_allclose(found, mean[order][k] + half[k] * np.array([-1, 1]), atol=1e-8)
        inside = abs(y - mean)[order] <= half
        assert 0 < inside.sum() < len(y)
        assert_array_equal(display.inside_.get_xdata(), np.flatnonzero(inside))
        assert_allclose(display.outside_.get_ydata(), y[order][~inside])
        assert display.ax_ is ax and display.figure_ is ax.figure
        assert display.label == "80 % interval"

    def test_subsample_keeps_rows_whole(self):
        y = np.arange(50.0)
        pair = np.column_stack([y - 1, y + 1])
        display = PredictionIntervalDisplay.from_predictions(
            y, y + 0.5, pair, subsample=7, random_state=0
        )
        assert len(set(display.y_true)) == 7
        assert_array_equal(display.y_pred, display.y_true + 0.5)
        assert_array_equal(display.lower, display.y_true - 1)
        assert not len(display.outside_.get_xdata())

    def test_one_of_several_targets(self):
        y = np.column_stack([np.arange(5.0), -np.arange(5.0)])
        pair = np.stack([y - 1, y + 1], axis=-1)
        display = PredictionIntervalDisplay.from_predictions(y, y, pair, target=1)
        assert_array_equal(display.lower, np.arange(-4.0, 1) - 1)

    @pytest.mark.parametrize(
        "wrong, says",
        [
            (dict(interval=np.ones((4, 3))), "interval two values"),
            (dict(y_pred=np.ones(3)), "must have one shape"),
            (dict(y_true="nonsense"), "y_true must be an array of numbers"),
            (dict(subsample=0), "subsample must be an integer of at least 1"),
            (dict(ax=[1, 2]), "ax must be a matplotlib Axes"),
        ],
    )
    def test_wrong_input(self, wrong, says):
        good = dict(y_true=np.ones(4), y_pred=np.ones(4), interval=np.ones((4, 2)))
        with pytest.raises(ValueError, match=says):
            PredictionIntervalDisplay.from_predictions(**good | wrong)


class TestPosterior:
    def test_one_column_at_the_medians_of_the_others(self, data, gp):
        X, y = data
        display = PosteriorDisplay.from_estimator(gp, X[:60], 0, y=y[:60], n_samples=4)
        x = np.linspace(X[:60, 0].min(), X[:60, 0].max(), 200)
        others = np.quantile(X[:60, 1:], 0.5, axis=0, method="lower")
        table = np.column_stack([x, np.tile(others, (200, 1))])
        assert_allclose(display.line_.get_data(), [x, gp.predict(table)])
        std = gp.predict_std(table, include_noise=False)
        assert_allclose(display.std, std)
        assert_allclose(display.upper - display.mean, stats.norm.ppf(0.975) * std)
        assert len(display.sample_lines_) == 4
        assert_array_equal(display.observed_.get_xdata(), X[:60, 0])

    def test_samples_are_joint_and_without_noise(self, data, gp):
        X, _ = data
        display = PosteriorDisplay.from_estimator(gp, X, 1, n_samples=2000, grid_resolution=5)
        kernel = gp.kernel_.k1
        table = np.tile(np.quantile(X, 0.5, axis=0, method="lower"), (5, 1))
        table[:, 1] = display.grid[0]
        noisy = kernel(gp.X_train_) + (gp.kernel_.k2.noise_level + 1e-10) * np.eye(60)
        cross = kernel(table, gp.X_train_)
        exact = kernel(table) - cross @ np.linalg.solve(noisy, cross.T)
        exact *= gp._y_train_std**2
        # The covariance of a sample covariance's entries is (c_ii c_jj + c_ij^2) / s.
        error = np.sqrt((np.outer(exact.diagonal(), exact.diagonal()) + exact**2) / 2000)
        assert (abs(np.cov(display.samples) - exact) < 5 * error).all()
        assert_allclose(display.samples.mean(1), display.mean, atol=5 * np.sqrt(exact.max() / 2000))

    def test_two_columns(self, data, gp):
        X, _ = data
        display = PosteriorDisplay.from_estimator(
            gp, X, (2, 0), grid_resolution=6, n_samples=1, kind=["mean", "std", "sample"]
        )
        assert set(display.maps_) == {"mean", "std", "sample"} and len(display.ax_) == 3
        at = np.quantile(X, 0.5, axis=0, method="lower")
        at[[2, 0]] = display.grid[0][4], display.grid[1][1]
        assert_allclose(display.mean[4, 1], gp.predict(at[None])[0])
        assert_allclose(display.std[4, 1], gp.predict_std(at[None], include_noise=False)[0])
        assert display.samples.shape == (6, 6, 1)

    @pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
    def test_frames_with_text_through_a_pipeline(self, data, library):
        X, y = data
        frame = library.DataFrame(
            {"a": X[:60, 0], "b": X[:60, 1], "c": ["u", "v", "v"] * 20, "flag": [True, False] * 30}
        )
        model = make_pipeline(
            make_column_transformer(
                (OneHotEncoder(sparse_output=False), ["c", "flag"]), remainder="passthrough"
            ),
            IterativeGPRegressor(optimizer=None, random_state=0),
        ).fit(frame, y[:60])
        display = PosteriorDisplay.from_estimator(model, frame, "a", grid_resolution=4)
        b = np.quantile(X[:60, 1], 0.5, method="lower")
        at = library.DataFrame(
            {"a": display.grid[0], "b": [b] * 4, "c": ["v"] * 4, "flag": [False] * 4}
        )
        assert_allclose(display.line_.get_ydata(), model.predict(at))
        assert display.ax_.get_xlabel() == "a"

    def test_samples_of_a_transformed_target(self, data):
        X, y = data
        inner = IterativeGPRegressor(KERNEL, optimizer=None)
        model = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp)
        model.fit(X[:60], np.exp(y[:60]))
        inner = clone(inner).fit(X[:60], y[:60])
        settings = dict(X=X, features=0, grid_resolution=5, n_samples=2)
        display = PosteriorDisplay.from_estimator(model, **settings)
        plain = PosteriorDisplay.from_estimator(inner, **settings)
        assert_allclose(np.log(display.samples), plain.samples)
        assert_allclose(np.log(display.lower), plain.lower)

    def test_several_targets(self, data):
        X, y = data
        Y = np.column_stack([y, 5 - 2 * y])
        kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.02)
        together = IterativeGPRegressor(kernel, optimizer=None, normalize_y=True)
        settings = dict(X=X, features=0, grid_resolution=5, n_samples=1000)
        found = [
            PosteriorDisplay.from_estimator(model.fit(X[:60], Y[:60]), target=1, **settings)
            for model in (together, MultiOutputRegressor(clone(together)))
        ]
        assert_allclose(found[0].mean, found[1].mean)
        for display in found:
            error = display.std / np.sqrt(1000)
            assert (abs(display.samples.mean(1) - display.mean) < 5 * error).all()
            assert_allclose(display.samples.std(1), display.std, rtol=0.1)

    def test_other_peoples_process_with_noise_only(self, data):
        X, y = data
        model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X[:60], y[:60])
        display = PosteriorDisplay.from_estimator(model, X, 0, include_noise=True, n_samples=2)
        assert_allclose(display.samples[:, 0], model.sample_y(_table(X, display), 2, 0)[:, 0])
        with pytest.raises(ValueError, match="include_noise=False is only for"):
            PosteriorDisplay.from_estimator(model, X, 0)

    def test_models_without_joint_samples(self, data, student):
        X, y = data
        experts = PoERegressor(expert_size=30, combination="rbcm", max_iter=2, random_state=0)
        experts.fit(X[:60], y[:60])
        with pytest.raises(ValueError, match="n_samples=0 draws"):
            PosteriorDisplay.from_estimator(experts, X, 0)
        display = PosteriorDisplay.from_estimator(experts, X, 0, n_samples=0)
        assert not display.sample_lines_
        assert len(PosteriorDisplay.from_estimator(student, X, 0).sample_lines_) == 3
        noisy = HeteroscedasticRegressor(IterativeGPRegressor(KERNEL, optimizer=None))
        noisy.fit(X[:60], y[:60])
        assert len(PosteriorDisplay.from_estimator(noisy, X, 0).sample_lines_) == 3

    @pytest.mark.parametrize(
        "wrong, says",
        [
            (dict(features=3), "features must be one column of X or two .* from 0 to 2; got 3"),
            (dict(features="a"), "features must be"),
            (dict(features=[0, 1, 2]), "features must be"),
            (dict(features=[0, 0]), "features must be"),
            (dict(features=None), "features must be"),
            (dict(features=0.5), "features must be"),
            (dict(X=np.ones(5)), "X must be a table"),
            (dict(grid_resolution=1), "grid_resolution must be an integer of at least 2"),
            (dict(n_samples=-1), "n_samples must be an integer of at least 0"),
            (dict(coverage=1.5), "coverage must"),
            (dict(kind="mean"), "kind is for the maps of two columns"),
            (dict(features=[0, 1], kind="nonsense"), "kind must be"),
            (dict(features=[0, 1], kind="sample", n_samples=0), "needs a sample"),
            (dict(y=[1, 2]), "y must have a value for each"),
            (dict(target=1), "target must be"),
        ],
    )
    def test_wrong_input(self, data, gp, wrong, says):
        good = dict(X=data[0], features=0, grid_resolution=4)
        with pytest.raises(ValueError, match=says):
            PosteriorDisplay.from_estimator(gp, **good | wrong)


def _table(X, display):
    table = np.tile(np.quantile(X, 0.5, axis=0, method="lower"), (len(display.grid[0]), 1))
    table[:, 0] = display.grid[0]
    return table


class TestTraining:
    def test_history_and_seconds(self, data):
        X, y = data
        gp = IterativeGPRegressor(max_iter=4, random_state=0)
        search = GridSearchCV(make_pipeline(StandardScaler(), gp), {}, cv=2).fit(X, y)
        core = search.best_estimator_[-1]
        display = TrainingDisplay.from_estimator(search)
        (line,) = display.lines_["objective"]
        objective = np.array(core.history_["objective"])
        known = np.isfinite(objective)
        assert_allclose(line.get_ydata(), objective[known])
        assert_array_equal(line.get_xdata(), np.flatnonzero(known) + 1)
        lines = display.lines_["hyperparameters"]
        names = ["k1__k1__constant_value", *[f"k1__k2__length_scale[{k}]" for k in range(3)]]
        assert [one.get_label() for one in lines] == [*names, "k2__noise_level"]
        thetas = np.array(core.history_["theta"])
        assert_allclose(np.transpose([one.get_ydata() for one in lines]), np.exp(thetas))
        seconds = {k: v for k, v in core.fit_report_.seconds.items() if k != "total"}
        assert_allclose(widths(display.bars_), list(seconds.values()))
        ticks = [tick.get_text() for tick in display.ax_[-1].get_yticklabels()]
        assert ticks == list(seconds)

    def test_gradients_without_an_objective_have_residuals(self, data):
        X, y = data
        model = RRCGRegressor(truncation="fixed", max_iter=3, n_probes=3, random_state=0).fit(X, y)
        display = TrainingDisplay.from_estimator(model)
        assert "objective" not in display.lines_
        labels = {one.get_label(): one for one in display.lines_["residuals"]}
        assert_allclose(labels["probes"].get_ydata(), model.history_["probe_residual"])
        with pytest.raises(ValueError, match="kind='objective' has nothing to show"):
            display.plot(kind="objective")
        _, ax = plt.subplots()
        assert display.plot(kind="seconds", ax=ax).ax_ is ax

    def test_noise_beside_the_kernel_has_a_name(self, data):
        X, y = data
        model = SCGDDKLRegressor(feature_extractor=(4,), max_epochs=2, random_state=0).fit(X, y)
        display = TrainingDisplay.from_estimator(model)
        assert display.hyperparameter_names[-1] == "noise"
        assert_allclose(
            display.hyperparameters[:, -1], np.exp([t[-1] for t in model.history_["theta"]])
        )

    def test_stages_with_other_hyperparameters_are_gaps(self, data):
        X, y = data
        model = QSRVMRegressor(max_iter=3, random_state=0).fit(X, y)
        lengths = np.array([len(theta) for theta in model.history_["theta"]])
        display = TrainingDisplay.from_estimator(model)
        assert len(display.hyperparameter_names) == len(model.kernel_.theta)
        known = np.isfinite(display.hyperparameters).all(1)
        assert_array_equal(known, lengths == len(model.kernel_.theta))
        assert known.any() and not known.all()

    def test_stages_with_another_objective_are_left_out(self, data):
        X, y = data
        model = SVGPRegressor(n_inducing=20, batch_size=30, max_iter=3, random_state=0).fit(X, y)
        display = TrainingDisplay.from_estimator(model, kind="objective")
        last = model.history_["objective_name"][-1]
        assert display.ax_.get_ylabel() == last
        drawn = np.concatenate([one.get_ydata() for one in display.lines_["objective"]])
        found = zip(model.history_["objective"], model.history_["objective_name"], strict=True)
        assert_allclose(drawn, [value for value, name in found if name == last])

    def test_classifiers_too(self, data):
        X, y = data
        model = SVGPClassifier(n_inducing=10, max_iter=3, random_state=0).fit(X, y > 0.5)
        display = TrainingDisplay.from_estimator(model)
        assert display.lines_["hyperparameters"] and display.bars_ is not None

    def test_wrong_input(self, data, gp):
        X, y = data
        with pytest.raises(TypeError, match="LinearRegression has no history_"):
            TrainingDisplay.from_estimator(make_pipeline(LinearRegression().fit(X, y)))
        with pytest.raises(TypeError, match="has no history_"):
            TrainingDisplay.from_estimator(IterativeGPRegressor())
        with pytest.raises(ValueError, match="kind must be one or several of"):
            TrainingDisplay.from_estimator(gp, kind="nonsense")


class TestRelevance:
    def test_length_scales_and_permutations(self, data, gp):
        X, y = (part[60:] for part in data)
        display = RelevanceDisplay.from_estimator(gp, X, y, n_repeats=3, random_state=0)
        ((bars,), (losses,)) = display.bars_["length_scale"], display.bars_["permutation"]
        expected = X.std(0) / [0.5, 2.0, 40.0]
        order = np.argsort(-expected)
        assert_allclose(widths(bars), expected[order])
        ticks = [tick.get_text() for tick in display.ax_[0].get_yticklabels()]
        assert ticks == [f"column {j}" for j in order]

        def minus_nlpd(model, X, y):
            return -nlpd(y, *model.predict(X, return_std=True))

        found = permutation_importance(gp, X, y, scoring=minus_nlpd, n_repeats=3, random_state=0)
        assert_allclose(display.importances, found.importances)
        assert_allclose(widths(losses), np.sort(found.importances_mean)[::-1])

    def test_columns_have_the_names_behind_a_pipeline(self, data):
        X, y = data
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        kernel = Columns(RBF([1.0, 3.0]), ["a", "b"]) + Matern([1.0, 2.0, 4.0]) + WhiteKernel(0.1)
        model = IterativeGPRegressor(kernel, optimizer=None).fit(frame, y)
        display = RelevanceDisplay.from_estimator(model, frame)
        spread = X.std(0)
        found = list(display.spreads.values())
        assert_allclose(found, [[*spread[:2] / [1, 3], np.nan], spread / [1, 2, 4]])
        assert display.kernel_columns == ["a", "b", "c"] and len(display.ax_) == 1
        scaled = make_pipeline(StandardScaler(), IterativeGPRegressor(KERNEL, optimizer=None))
        display = RelevanceDisplay.from_estimator(scaled.fit(frame, y), frame, max_columns=2)
        ((bars,),) = display.bars_.values()
        assert_allclose(widths(bars), [2, 0.5])
        assert display.kernel_columns == ["a", "b", "c"]

    def test_classifiers_lose_log_loss(self, data):
        X, y = data
        model = SVGPClassifier(n_inducing=10, max_iter=3, random_state=0).fit(X, y > 0.5)
        display = RelevanceDisplay.from_estimator(
            model, X, y > 0.5, kind="permutation", n_repeats=2, random_state=0
        )

        def minus_loss(model, X, y):
            return -log_loss(y, model.predict_proba(X))

        found = permutation_importance(
            model, X, y > 0.5, scoring=minus_loss, n_repeats=2, random_state=0
        )
        assert_allclose(display.importances, found.importances)

    def test_kernels_behind_a_network_say_nothing_of_columns(self, data):
        X, y = data
        model = SCGDDKLRegressor(feature_extractor=(3,), max_epochs=2, random_state=0).fit(X, y)
        assert not RelevanceDisplay.from_estimator(model, X, y, n_repeats=1).spreads
        with pytest.raises(ValueError, match="no part of the kernel has a length scale"):
            RelevanceDisplay.from_estimator(model, X, kind="length_scale")

    def test_wrong_input(self, data, gp):
        X, y = data
        for wrong, says in [
            (dict(kind="nonsense"), "kind must be"),
            (dict(kind="permutation", y=None), "there is no y"),
            (dict(n_repeats=0), "n_repeats must be"),
            (dict(max_columns=0), "max_columns must be"),
            (dict(ax=3), "ax must be"),
        ]:
            with pytest.raises(ValueError, match=says):
                RelevanceDisplay.from_estimator(gp, X, **{"y": y, "n_repeats": 1, **wrong})


class TestLeaderboard:
    def test_scores_weights_and_seconds_of_each_member(self, data):
        X, y = data
        # More neighbours than rows: this member fails, and has no score.
        members = ["linear", ("broken", KNeighborsRegressor(10_000)), "exact"]
        gp = AutoGPRegressor(members, random_state=0)
        model = make_pipeline(StandardScaler(), gp).fit(X[:60], y[:60])
        rows = list(model[-1].leaderboard_)
        assert [row.member for row in rows] == ["exact", "linear", "broken"]
        display = LeaderboardDisplay.from_estimator(model)
        assert_array_equal(display.line_.get_xdata(), [row.nll for row in rows[:2]])
        assert_array_equal(display.line_.get_ydata(), [0, 1])
        for kind in ("weight", "seconds"):
            bars = display.bars_[kind]
            assert_array_equal(widths(bars), [getattr(row, kind) for row in rows])
            assert_allclose([bar.get_y() + bar.get_height() / 2 for bar in bars], [0, 1, 2])
        assert display.figure_ is display.ax_[0].figure and len(display.ax_) == 3
        for panel in display.ax_:
            bottom, top = panel.get_ylim()
            assert bottom > 2 and top < 0  # the lowest score is at the top
        ticks = [tick.get_text() for tick in display.ax_[0].get_yticklabels()]
        assert ticks == ["exact", "linear", "broken"]

    def test_one_panel_on_axes_of_the_user(self, data):
        X, y = data
        model = AutoGPClassifier(["linear"], random_state=0).fit(X, y > 0.5)
        _, ax = plt.subplots()
        display = LeaderboardDisplay.from_estimator(model, kind="nll", ax=ax)
        assert display.ax_ is ax and not display.bars_
        assert ax.get_xlabel() == "held-out log loss (lower is better)"
        display.plot(kind=["seconds"], bar_kwargs={"color": "red"})
        assert display.line_ is None
        assert display.bars_["seconds"][0].get_facecolor() == (1, 0, 0, 1)

    def test_a_member_that_was_not_compared_has_no_score(self, data):
        X, y = data
        model = AutoGPRegressor(random_state=0).fit(X[:3], y[:3])
        display = LeaderboardDisplay.from_estimator(model)
        assert set(display.bars_) == {"weight", "seconds"} and display.line_ is None
        with pytest.raises(ValueError, match="kind='nll' has nothing to show"):
            display.plot(kind="nll")

    def test_wrong_input(self, gp):
        for wrong in (gp, AutoGPRegressor()):
            with pytest.raises(TypeError, match="has no leaderboard_"):
                LeaderboardDisplay.from_estimator(wrong)
        numbers = dict(nll=np.ones(1), weight=np.ones(1), seconds=np.ones(1))
        display = LeaderboardDisplay(members=["linear"], **numbers)
        for wrong, says in (({"kind": "crps"}, "kind must be"), ({"ax": 3}, "ax must be")):
            with pytest.raises(ValueError, match=says):
                display.plot(**wrong)


@pytest.mark.parametrize(
    "display", [IntervalCalibrationDisplay, PredictionIntervalDisplay, PosteriorDisplay]
)
def test_classifiers_are_sent_elsewhere(display, data):
    X, y = data
    model = SVGPClassifier(n_inducing=5, max_iter=1).fit(X, y > 0.5)
    with pytest.raises(TypeError, match="SVGPClassifier is a classifier: use sklearn"):
        display.from_estimator(model, X, y > 0.5)


def test_matplotlib_is_imported_when_something_is_drawn(gp, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="TrainingDisplay.plot requires matplotlib"):
        TrainingDisplay.from_estimator(gp)
    for path in Path(inspection.__file__).parent.glob("*.py"):
        assert not re.search(r"^(from|import) matplotlib", path.read_text(), re.MULTILINE)
