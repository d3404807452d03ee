"""Noise that depends on the row: rows left out against refits, and data whose noise is known."""

from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from skscalablegp import (
    AutoGPRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    MeanFunctionRegressor,
    NNGPRegressor,
    PoERegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    StackedGPRegressor,
    SVGPRegressor,
)
from skscalablegp.core import FitRun, fitted_process
from skscalablegp.core.training import Budget, StopTraining
from skscalablegp.kernels import Columns
from skscalablegp.meta import Errors, NoiseModel, Tails, noise_features
from skscalablegp.meta._jobs import FoldFits
from skscalablegp.meta._noise import (
    NoisePart,
    best_noise,
    constant,
    level,
    predicted_by_folds,
    supported,
)
from skscalablegp.meta._unseen import _answer
from skscalablegp.metrics import neg_nlpd_scorer, nlpd, predict_std
from skscalablegp.solvers import End

KERNEL = ConstantKernel(2.0) * RBF(1.0) + WhiteKernel(0.05)
Z = np.random.default_rng(1).uniform(-2, 2, (20, 2))


def rows(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = 5 + 3 * np.sin(2 * X[:, 0]) + X.sum(1) + 0.5 * rng.standard_normal(n)
    return X, y, rng.uniform(0.01, 0.5, n)


def spread(X):
    """The noise's standard deviation of `curve`."""
    return 0.03 + X[:, 0] ** 2


def curve(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 1))
    return X, np.sin(6 * X[:, 0]) + spread(X) * rng.standard_normal(n)


class TestLeaveOneOut:
    """Of every posterior, against fits without the row at the same hyperparameters."""

    @pytest.mark.parametrize("noisy", [False, True])
    @pytest.mark.parametrize(
        "model",
        [
            IterativeGPRegressor(KERNEL, optimizer=None, alpha=0.02),
            PoERegressor(KERNEL, optimizer=None),
            RFFRegressor(KERNEL, optimizer=None, n_components=60, random_state=0),
            SGPRRegressor(KERNEL, optimizer=None, inducing=Z, alpha=0.02),
            SVGPRegressor(KERNEL, optimizer=None, inducing=Z, optimize_inducing=False),
            NNGPRegressor(KERNEL, optimizer=None, n_neighbors=12, alpha=0.02),
        ],
        ids=lambda model: type(model).__name__,
    )
    def test_against_refits(self, model, noisy):
        X, y, noise = rows()
        known = noise if noisy else None
        chosen = np.array([0, 17, 79])
        model.set_params(normalize_y=False).fit(X, y, noise_variance=known)
        left = fitted_process(model).left_out(X, y, known, chosen)
        alpha = model.get_params().get("alpha", 0.0)
        for k, i in enumerate(chosen):
            kept = np.arange(len(X)) != i
            without = clone(model).fit(X[kept], y[kept], None if known is None else known[kept])
            own = (noise[i] if noisy else 0.0) + (alpha if alpha > 1e-9 else 0.0)
            expected = without.predict(X[[i]], return_std=True, noise_variance=own)
            np.testing.assert_allclose((left.mean[k], left.std[k]), np.ravel(expected), rtol=2e-4)

    def test_solved_samples_estimate_the_diagonal(self):
        X, y, _ = rows()
        exact = IterativeGPRegressor(KERNEL, optimizer=None).fit(X, y)
        sampled = IterativeGPRegressor(
            KERNEL, optimizer=None, solver="cg", solver_tol=1e-6, posterior="pathwise"
        )
        sampled.set_params(n_probes=512, random_state=0).fit(X, y)
        every = np.arange(len(X))
        processes = fitted_process(exact), fitted_process(sampled)
        truth, seen = (process.left_out(X, y, None, every) for process in processes)
        ratio = (y - seen.mean) / (y - truth.mean)
        # A mean square of 512 numbers has a relative standard error of 1/16.
        assert np.abs(np.mean(ratio) - 1) < 0.03 and np.std(ratio) < 0.12
        assert np.std(seen.std / truth.std) < 0.06

    @pytest.mark.parametrize("rule", ["gpoe", "rbcm"])
    def test_experts_leave_rows_out_one_by_one(self, rule):
        X, y, _ = rows()
        model = PoERegressor(KERNEL, optimizer=None, expert_size=30, combination=rule)
        model.set_params(random_state=0, normalize_y=False).fit(X, y)
        left = fitted_process(model).left_out(X, y, None, np.arange(len(X)))
        mean, std = left.mean, left.std
        i = 11
        mine = next(k for k, part in enumerate(model.experts_) if i in part)
        parts = [part if k != mine else part[part != i] for k, part in enumerate(model.experts_)]
        both = [
            GaussianProcessRegressor(KERNEL, optimizer=None).fit(X[p], y[p]).predict(X[[i]], True)
            for p in parts
        ]
        means, latent = np.ravel([m for m, _ in both]), np.ravel([s**2 for _, s in both]) - 0.05
        prior = 2.0
        beta = 0.5 * np.log(prior / latent)
        if rule == "gpoe":
            precision = np.sum(beta / beta.sum() / latent)
            expected = np.sum(beta / beta.sum() / latent * means) / precision
        else:
            precision = np.sum(beta / latent) + (1 - beta.sum()) / prior
            expected = np.sum(beta / latent * means) / precision
        assert mean[i] == pytest.approx(expected, rel=1e-4)
        assert std[i] == pytest.approx(np.sqrt(1 / precision + 0.05), rel=1e-4)

    def test_learned_features_have_none(self):
        X, y, _ = rows()
        model = SCGDDKLRegressor(feature_extractor=(8,), max_epochs=2, random_state=0).fit(X, y)
        assert fitted_process(model).left_out(X, y, None, np.arange(3)) is None
        with pytest.raises(ValueError, match="SCGDDKLRegressor has no closed form"):
            HeteroscedasticRegressor(model, residuals="leave_one_out").fit(X, y)
        with pytest.raises(ValueError, match="LinearRegression has no closed form"):
            HeteroscedasticRegressor(LinearRegression(), residuals="leave_one_out").fit(X, y)


class Counting(LinearRegression):
    """Keeps a list of the sizes of its fits; `fails` may raise in the second one."""

    def __init__(self, sizes=None, fails=None):
        super().__init__()
        self.sizes, self.fails = sizes, fails

    def __sklearn_clone__(self):
        return Counting(self.sizes, self.fails)

    def fit(self, X, y):
        self.sizes.append(len(X))
        if self.fails is not None and len(self.sizes) == 2:
            raise self.fails
        return super().fit(X, y)


class TestNoise:
    """On a curve whose noise is known."""

    @pytest.mark.parametrize(
        "below",
        [
            None,
            pytest.param(HistGradientBoostingRegressor(), marks=pytest.mark.slow),
            pytest.param(make_pipeline(StandardScaler(), RFFRegressor()), marks=pytest.mark.slow),
        ],
        ids=["experts", "trees", "pipeline"],
    )
    def test_the_noise_is_found(self, below):
        X, y = curve(600)
        X_new, y_new = curve(4000, seed=1)
        model = HeteroscedasticRegressor(below, random_state=0).fit(X, y)
        mean, std = model.predict(X_new, return_std=True)
        assert np.corrcoef(np.log(std), np.log(spread(X_new)))[0, 1] > 0.9
        truth = nlpd(y_new, np.sin(6 * X_new[:, 0]), spread(X_new))
        assert nlpd(y_new, mean, std) - truth < 0.3
        assert model.noise_gain_ > 0.2 and model.n_residuals_ == 600

    @pytest.mark.slow
    def test_refits_weigh_rows(self):
        X, y = curve(400)
        X_new, y_new = curve(4000, seed=1)
        errors, scores = [], []
        for n_refits in (0, 1):
            model = HeteroscedasticRegressor(n_refits=n_refits, random_state=0).fit(X, y)
            mean, std = model.predict(X_new, return_std=True)
            errors.append(np.sqrt(np.mean((mean - np.sin(6 * X_new[:, 0])) ** 2)))
            scores.append(nlpd(y_new, mean, std))
        assert errors[1] < 0.9 * errors[0] and scores[1] < scores[0] - 0.01
        weighed = HeteroscedasticRegressor(DecisionTreeRegressor(max_depth=4), n_refits=1)
        assert weighed.fit(X, y).fit_report_.ignored.keys() == {"validation_fraction"}
        assert model.fit_report_.ignored.keys() == {"validation_fraction"}
        fits = []
        neither = HeteroscedasticRegressor(Counting(fits), n_refits=3)
        assert "takes no noise_variance" in neither.fit(X, y).fit_report_.ignored["n_refits"]
        assert len(fits) == 6  # one on all rows, and one for each fold

    def test_noise_is_not_counted_twice(self):
        """A regressor that takes weights has its own noise in its standard deviations, still."""
        X, y = curve(400)
        model = HeteroscedasticRegressor(BayesianRidge(), n_refits=1, random_state=0).fit(X, y)
        assert model._learned.extra == 0

    def test_standard_deviations_pass_a_transform_of_the_target(self):
        X, y = curve(300)
        below = TransformedTargetRegressor(RFFRegressor(), transformer=StandardScaler())
        model = HeteroscedasticRegressor(below, LinearRegression(), random_state=0).fit(X, y)
        expected = predict_std(model.estimator_, X) * model._learned.noise.factor(
            noise_features(X, model.predict(X), predict_std(model.estimator_, X) ** 2)
        )
        assert np.ptp(predict_std(model.estimator_, X)) > 0
        np.testing.assert_allclose(model.predict_std(X), expected, rtol=1e-9)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("n", [30, pytest.param(200, marks=pytest.mark.slow)])
    def test_a_constant_costs_nothing(self, n):
        costs = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            X, X_new = rng.uniform(size=(n, 2)), rng.uniform(size=(2000, 2))
            y, y_new = (np.sin(6 * A[:, 0]) + 0.3 * rng.standard_normal(len(A)) for A in (X, X_new))
            below = PoERegressor(random_state=0)
            plain = below.fit(X, y).predict(X_new, return_std=True)
            model = HeteroscedasticRegressor(below, random_state=0).fit(X, y)
            costs.append(nlpd(y_new, *model.predict(X_new, return_std=True)) - nlpd(y_new, *plain))
            if n < 100:
                assert not model.noise_estimators_
        assert np.mean(costs) < 0.01

    @pytest.mark.slow
    def test_few_rows_of_many_columns_have_no_pattern(self):
        """Errors of one size, in which a length scale for each feature would find a pattern."""
        found = []
        for seed in range(8):
            rng = np.random.RandomState(seed)
            F, squares = rng.uniform(size=(100, 12)), rng.standard_normal(100) ** 2
            found.append(best_noise(F, squares, None, rng, lambda: None)[0].name)
        assert sum(name != "a constant" for name in found) <= 1

    def test_any_regressor_learns_it(self):
        rng = np.random.RandomState(0)
        F = rng.uniform(size=(500, 2))
        squares = np.exp(3 * F[:, 0]) * rng.standard_normal(500) ** 2
        model, logs = best_noise(F, squares, LinearRegression(), rng, lambda: None)
        (part,) = model.parts
        assert isinstance(part.regressor, LinearRegression) and model.name == "LinearRegression"
        assert np.corrcoef(np.log(model.factor(F)), F[:, 0])[0, 1] > 0.95
        # What is predicted from other rows has the right level, by construction.
        assert np.mean(squares / np.exp(logs)) == pytest.approx(1)
        assert level(squares).factor(F)[0] == pytest.approx(np.sqrt(np.mean(squares)))

    @pytest.mark.slow
    def test_two_models_are_multiplied(self):
        """On heavy tails, where each kind alone is worse."""
        rng = np.random.RandomState(0)
        F = rng.uniform(size=(3000, 2))
        truth = 4 * F[:, 0] + 2 * np.sin(6 * F[:, 1])
        squares = np.exp(truth) * rng.standard_t(4, 3000) ** 2
        model, logs = best_noise(F, squares, None, rng, lambda: None)
        assert [part.log_link for part in model.parts] == [False, True] and " and " in model.name
        predicted = model.level + sum(part.logs(F) for part in model.parts)
        np.testing.assert_allclose(model.factor(F), np.exp(predicted / 2))
        assert np.corrcoef(predicted, truth)[0, 1] > 0.95 and np.corrcoef(logs, truth)[0, 1] > 0.95
        assert np.mean(squares / np.exp(logs)) == pytest.approx(1)

    def test_tails(self):
        rng = np.random.default_rng(0)
        z = rng.standard_t(3, 20000)
        q = np.array([-3.0, -1.0, 0.0, 1.0, 3.0])
        truth = t.ppf(norm.cdf(q), 3)
        np.testing.assert_allclose(Tails.of("student", z)(q), truth, rtol=0.06, atol=0.01)
        np.testing.assert_allclose(Tails.of("empirical", z)(q), truth, rtol=0.15, atol=0.03)
        np.testing.assert_array_equal(Tails.of("normal", z)(q), q)
        assert (np.diff(Tails.of("empirical", z)(np.linspace(-9, 9, 99))) > 0).all()

    def test_few_bounded_errors_have_no_normal_tails(self):
        """A single half of 300 errors, compared by the CRPS, recognises three of these six."""
        draws = [(lambda r: r.uniform(-(3**0.5), 3**0.5, 300))] * 6
        assert self.chosen(draws).count("empirical") >= 5

    def test_normal_errors_have_normal_tails(self):
        """Without handicaps of the other shapes three of these ten have others."""
        assert self.chosen([lambda r: r.standard_normal(600)] * 10).count("normal") >= 9

    @staticmethod
    def chosen(draws):
        """The tails of errors, drawn by functions of a RandomState with the seeds 0, 1, ..."""
        found = []
        for seed, draw in enumerate(draws):
            random = np.random.RandomState(seed)
            run = Mock(spec=FitRun, random_state=random, chose=lambda name, value, why: value)
            found.append(HeteroscedasticRegressor()._best_tails(draw(random), run).name)
        return found

    def test_heavy_tails_are_in_intervals_and_draws(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(1000, 1))
        y = rng.standard_t(2.5, 1000)
        model = HeteroscedasticRegressor(DecisionTreeRegressor(max_depth=1), tails="auto")
        model.set_params(random_state=0).fit(X, y)
        assert model.fit_report_.choices["tails"].value in ("student", "empirical")
        ends = model.predict_interval(X[:1], 0.5)[0]
        draws = model.sample_y(X[:1], 20000)[0]
        assert np.mean((draws > ends[0]) & (draws < ends[1])) == pytest.approx(0.5, abs=0.02)
        # Half of a t with 2.5 degrees of freedom is within 0.77 of its median.
        assert np.diff(ends)[0] == pytest.approx(2 * 0.77, rel=0.15)


class Repeats:
    """A table in which a sixth of the rows repeats others, most of them with their targets.

    Inputs are repeated with different probabilities. Other targets are drawn anew, with the
    function and noise of all rows.
    """

    def __init__(self, n, seed, equal, noise, vary=0.0, kind="normal", share=1 / 6):
        count = int(share * n)
        self.rng, self.equal, self.noise = np.random.default_rng(seed), equal, noise
        self.vary, self.kind = vary, kind
        self.seen = self.rng.standard_normal((n - count, 4))
        self.targets = self.drawn(self.seen)
        self.often = np.exp(1.5 * self.rng.standard_normal(len(self.seen)))
        X, y = self.repeated(count)
        self.X, self.y = np.vstack([self.seen, X]), np.append(self.targets, y)

    def drawn(self, X):
        std = self.noise * np.exp(self.vary * X[:, 0])
        if self.kind == "step":
            std = np.where(X[:, 0] > 0, std, 0.05 * std)
        if self.kind == "rare":
            std = np.where(self.rng.random(len(X)) < 0.1, 3.0, 0.1) * std
        return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + std * self.rng.standard_normal(len(X))

    def repeated(self, m):
        at = self.rng.choice(len(self.seen), m, p=self.often / self.often.sum())
        same = self.rng.random(m) < self.equal
        return self.seen[at], np.where(same, self.targets[at], self.drawn(self.seen[at]))

    def new(self, m):
        X = self.rng.standard_normal((m, 4))
        return X, self.drawn(X)


class TestRepeatedRows:
    """Errors at copies are small, until a copy comes whose target is another one."""

    @pytest.mark.parametrize(
        ("n", "seed", "equal", "noise", "vary", "kind", "gain", "below"),
        [
            (600, 0, 0.99, 0.1, 0.0, "normal", -0.05, PoERegressor),
            *(
                pytest.param(n, *row, PoERegressor, marks=pytest.mark.slow)
                for n, *row in (
                    (1440, 0, 0.8, 0.2, 0.7, "normal", 0.35),
                    (1440, 6, 0.95, 0.1, 0.0, "step", 0.8),
                )
            ),
            *(
                pytest.param(n, *row, PoERegressor, marks=pytest.mark.night)
                for n, *row in (
                    (600, 1, 0.99, 0.1, 0.0, "normal", -0.05),
                    (1440, 1, 0.99, 0.02, 0.0, "normal", -0.05),
                    (1440, 0, 1.0, 0.2, 0.0, "normal", -0.05),
                    (1440, 7, 0.95, 0.1, 0.0, "rare", -0.05),
                )
            ),
        ],
    )
    def test_new_and_repeated_inputs_keep_the_density_of_the_regressor(
        self, n, seed, equal, noise, vary, kind, gain, below
    ):
        """They gain where the size of errors depends on the inputs."""
        table = Repeats(n, seed, equal, noise, vary, kind)
        plain = below(random_state=0).fit(table.X, table.y)
        model = HeteroscedasticRegressor(below(), random_state=0).fit(table.X, table.y)
        for X, y in (table.repeated(4000), table.new(4000)):
            mean, std = model.predict(X, return_std=True)
            before = plain.predict(X, return_std=True)
            assert nlpd(y, mean, std) < nlpd(y, *before) - gain
            covers, covered = (
                np.mean(np.abs(y - center) < norm.ppf(0.975) * width)
                for center, width in ((mean, std), before)
            )
            assert covers > min(0.9, covered - 0.01)
        if gain > 0:
            assert model.noise_gain_ > 0.1

    @pytest.mark.parametrize(
        ("n", "share", "seed"),
        [
            (400, 0.7, 0),
            *(
                pytest.param(1000, share, seed, marks=pytest.mark.slow)
                for share, seed in ((0.6, 1), (0.6, 2), (0.8, 3), (0.8, 4))
            ),
        ],
    )
    def test_close_copies_do_not_narrow_new_inputs(self, n, share, seed):
        """No density of a fresh row is below that of the regressor by a tenth of a nat."""
        table = Repeats(n, seed, equal=1.0, noise=0.3, share=share)
        y = table.y + 1e-3 * table.rng.standard_normal(n)
        plain = IterativeGPRegressor(random_state=0).fit(table.X, y)
        model = HeteroscedasticRegressor(IterativeGPRegressor(), random_state=0).fit(table.X, y)
        for X, y in (table.repeated(1000), table.new(1000)):
            before, after = (
                norm.logpdf(y, *gp.predict(X, return_std=True)) for gp in (plain, model)
            )
            assert (after > before - 0.1).all()

    @pytest.mark.parametrize(
        ("copies", "others", "mean"),
        [(0.01, 1.4, 1.0), (0.2, 0.6, 0.4), (0.2, 0.8, 0.5**0.5), (0.01, 3.0, 1.505)],
    )
    def test_one_factor_narrows_no_kind_of_rows(self, copies, others, mean):
        """A factor f gains (S (1 - 1/f) - log f) / 2 in the mean, with the mean square S."""
        repeated = np.arange(200) < 100
        found = np.exp(constant(np.where(repeated, copies, others), repeated).level)
        assert found == pytest.approx(mean)

    def test_no_variance_is_smaller_than_its_rows_support(self):
        """A hundred errors of zero at copies, beside others: k v is the mean square at the rest."""
        F, errors = np.repeat([0.0, 1.0], [100, 300]), np.repeat([0.0, 1.0], [100, 300])
        regressor = LinearRegression().fit(F[:, None], np.where(F > 0, 0.0, -20.0))
        found = NoiseModel(0.0, (NoisePart(regressor, False, 1.0, (-20.0, 0.0)),), "both", 1.0)
        logs, ones = regressor.predict(F[:, None]), np.ones(400)
        model, raised = supported(found, logs, errors, ones, np.arange(400) < 200)
        np.testing.assert_allclose(raised[:100], np.log(1 / 100))
        np.testing.assert_allclose(raised[100:], 0, atol=1e-12)
        features = np.column_stack([F, np.zeros(400)])
        regressor.fit(features, np.where(F > 0, 0.0, -20.0))
        np.testing.assert_allclose(2 * np.log(model.factor(features)), raised, atol=1e-9)
        gains = 0.5 * (np.log(0.75) + errors / 0.75 - raised - errors * np.exp(-raised))
        assert model.gain == pytest.approx(gains.mean())

    def test_what_one_kind_of_rows_loses_the_other_does_not_buy(self):
        """Repeated rows have small errors; the model reduces those of some new rows, too."""
        rng = np.random.default_rng(0)
        repeated = np.arange(400) < 200
        squares = rng.standard_normal(400) ** 2 * np.where(repeated, 0.01, 1.0)
        found = NoiseModel(0.0, (NoisePart(LinearRegression(), False, 1.0, (-9, 9)),), "both", 1.0)
        for mistaken in (0, 100):
            logs = np.where(repeated, np.log(0.01), 0.0)
            logs[200 : 200 + mistaken] = np.log(0.2)
            shown = logs + np.log(np.mean(squares * np.exp(-logs)))
            model, raised = supported(found, shown, squares, np.ones(400), repeated)
            assert model.parts or mistaken
            # Without a model, neither kind loses by the factor, which is compared with none.
            plain = level(squares).level if model.parts else 0.0
            gains = 0.5 * (plain - raised + squares * (np.exp(-plain) - np.exp(-raised)))
            assert min(gains[repeated].mean(), gains[~repeated].mean()) >= 0

    def test_copies_do_not_tell_the_errors_of_one_another(self):
        """Five rows each have equal errors, of two sizes that nothing else tells apart."""
        rng = np.random.RandomState(0)
        F = np.repeat(rng.uniform(size=(100, 1)), 5, axis=0)
        squares = np.repeat(np.where(rng.uniform(size=100) < 0.2, 20.0, 0.01), 5)
        numbers = np.repeat(np.arange(100), 5)
        for given in (None, KNeighborsRegressor(4)):
            alone, together = (
                best_noise(F, squares, given, rng, lambda: None, groups)[0].name
                for groups in (None, numbers)
            )
            assert alone != "a constant" and together == "a constant"

    def test_copies_share_their_fold_in_automatic_models(self):
        """Five equal rows each have one error, which nothing else tells; others show the noise."""
        rng = np.random.RandomState(0)
        X = np.repeat(rng.uniform(size=(100, 1)), 5, axis=0)
        y = np.repeat(np.where(rng.uniform(size=100) < 0.2, 4.0, 0.1), 5)
        known, scored = np.zeros(500), np.ones(500, bool)

        def learned(X, y):
            errors = Errors(np.arange(500), X, y, known, scored)
            return errors.model(known, np.ones(500), 0.0, 0, Budget())[0]

        assert learned(X, y).name == "a constant"
        two = np.repeat([[0.0], [1.0]], 250, axis=0)
        assert learned(two, rng.standard_normal(500) * np.where(two[:, 0] > 0, 4, 0.1)).gain > 1

    @pytest.mark.slow
    @pytest.mark.parametrize(("equal", "seed"), [(0.95, 0), (1.0, 1)])
    def test_automatic_models_cover_new_inputs(self, equal, seed):
        """3,000 rows with 1,000 different inputs."""
        table = Repeats(3000, seed, equal, 0.1, share=2 / 3)
        model = AutoGPRegressor(["iterative", "trees"], random_state=0).fit(table.X, table.y)
        for X, y in (table.repeated(3000), table.new(3000)):
            low, high = model.predict_interval(X, 0.95).T
            assert np.mean((low <= y) & (y <= high)) > 0.88


class TestFolds:
    """A noise model is evaluated on errors that it has not seen, not through neighbours either."""

    def test_fits_of_folds_leave_out_their_own_rows(self):
        """Dense algebra without the fold and without the row."""
        X, y = curve(30)
        fitted, new, within = np.arange(24), np.arange(24, 30), np.array([3, 7, 26])
        inner = IterativeGPRegressor(KERNEL, optimizer=None).fit(X[fitted], y[fitted])
        fits = FoldFits(inner, X, y, {}, [(fitted, new)], _answer)
        left = _answer(inner, fits, 0, within)
        np.testing.assert_allclose(left.mean, inner.predict(X[new]))
        ((others, fold),) = left.folds
        assert fold is left.folds[0][1] and others.rows.tolist() == [3, 7]
        for row, mean, std in zip(others.rows, others.mean, others.std, strict=True):
            rest = np.delete(fitted, row)
            K, cross = KERNEL(X[rest]), KERNEL(X[row : row + 1], X[rest])[0]
            assert mean == pytest.approx(cross @ np.linalg.solve(K, y[rest]), abs=1e-6)
            variance = KERNEL.diag(X[:1])[0] - cross @ np.linalg.solve(K, cross)
            assert std == pytest.approx(variance**0.5, rel=1e-5)

    def test_parts_are_fitted_without_the_fold(self):
        """Lines of the log squares of the other rows, within the range of earlier predictions."""
        rng = np.random.default_rng(0)
        F, squares, fold = rng.uniform(size=(60, 2)), rng.uniform(size=60), np.arange(60) // 20
        part = NoisePart(LinearRegression().fit(F, squares), False, 0.5, (-2.0, 0.1))
        folds = [(F[fold != k], squares[fold != k], F[fold == k]) for k in range(3)]
        found = predicted_by_folds(NoiseModel(0.3, (part,)), folds, lambda: None)
        for k, (near, errors, far) in enumerate(folds):
            logs = np.log(errors / errors.mean() + 1e-4)
            table = np.column_stack([np.ones(40), near])
            line = np.column_stack([np.ones(20), far]) @ np.linalg.lstsq(table, logs)[0]
            np.testing.assert_allclose(
                found[20 * k : 20 * (k + 1)], 0.3 + 0.5 * np.clip(line, -2, 0.1)
            )


def groups(n, seed):
    """Pure noise, with the numbers of three groups in three columns, and a fourth column."""
    rng = np.random.default_rng(seed)
    hot = np.eye(3)[rng.integers(3, size=n)]
    return np.column_stack([hot, rng.random(n)]), rng.standard_normal(n)


class Features(LinearRegression):
    """Keeps the features of its fits."""

    seen = []

    def fit(self, X, y):
        self.seen.append(X)
        return super().fit(X, y)


class TestFeatures:
    """A mean without one row's target tells that target where the mean of all rows is known."""

    @pytest.mark.parametrize(
        "seed",
        [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
    )
    def test_pure_noise_teaches_nothing(self, seed):
        X, y = groups(300, seed)
        model = HeteroscedasticRegressor(IterativeGPRegressor(), random_state=0).fit(X, y)
        assert not model.noise_estimators_
        np.testing.assert_allclose(model.predict_std(X), y.std(), rtol=0.1)

    @pytest.mark.parametrize("stacked", [False, True])
    def test_means_are_those_of_folds(self, stacked):
        X, y = groups(300, 0)
        X = X[:, :3]
        y = y + X @ [-3.0, 0.0, 3.0]
        process = IterativeGPRegressor(KERNEL, optimizer=None)
        below = StackedGPRegressor([("process", process), ("mean", DummyRegressor())])
        Features.seen = []
        model = HeteroscedasticRegressor(below if stacked else process, Features(), random_state=0)
        model.fit(X, y)
        F = max(Features.seen, key=len)
        assert len(F) >= 240 and np.corrcoef(F[:, 3], F[:, 2] - F[:, 0])[0, 1] > 0.99
        # Five folds have three groups each. Without one row alone there are hundreds of means.
        assert 3 < len(np.unique(np.round(F[:, 3], 9))) <= 15


class TestInCompany:
    @pytest.mark.slow
    def test_search_in_two_processes(self):
        X, y = curve(120)
        model = HeteroscedasticRegressor(
            HistGradientBoostingRegressor(max_iter=5), LinearRegression(), random_state=0
        )
        search = GridSearchCV(
            model, {"estimator__max_iter": [5, 20]}, scoring=neg_nlpd_scorer, cv=2, n_jobs=2
        )
        assert search.fit(X, y).best_params_ == {"estimator__max_iter": 20}

    def test_what_the_regressor_cannot_do_is_said(self):
        X, y = curve(60)
        model = HeteroscedasticRegressor(LinearRegression()).fit(X, y)
        np.testing.assert_allclose(model.predict(X), LinearRegression().fit(X, y).predict(X))
        for call in (model.predict_std, model.predict_interval):
            with pytest.raises(ValueError, match="LinearRegression cannot leave the noise out"):
                call(X, include_noise=False)
        with pytest.raises(ValueError, match="LinearRegression.fit takes no noise_variance"):
            model.fit(X, y, noise_variance=0.1)
        np.testing.assert_allclose(
            np.diag(model.predict(X, return_cov=True)[1]), model.predict_std(X) ** 2
        )

    def test_little_time_for_the_noise(self):
        """The kinds of candidates that were compared by then compete with a constant."""
        X, y = curve(400)
        calls = iter([None] * 5)

        def check_time():
            if next(calls, 1) == 1:
                raise StopTraining(End.MAX_SECONDS)

        squares = (y - np.sin(6 * X[:, 0])) ** 2
        model, logs = best_noise(X, squares, None, np.random.RandomState(0), check_time)
        assert model.name.endswith("trees on log squares") and model.gain > 0.2
        assert np.corrcoef(logs, np.log(spread(X)))[0, 1] > 0.97
        with pytest.raises(StopTraining):
            best_noise(X, squares, None, np.random.RandomState(0), check_time)

    def test_no_time_for_the_noise(self):
        """The standard deviations have the size of the errors of some rows left out."""
        X, y = curve(300)
        with pytest.warns(UserWarning, match="max_seconds.*No time was left for the noise model"):
            model = HeteroscedasticRegressor(max_seconds=1e-9).fit(X, y)
        assert model.n_residuals_ == 200 and not model.noise_estimators_
        assert "noise_estimator" in model.fit_report_.ignored
        ratio = model.predict_std(X) / model.estimator_.predict_std(X)
        np.testing.assert_allclose(ratio, ratio[0])

    @pytest.mark.parametrize(
        ("fails", "seconds", "status"),
        [
            (None, 1e-9, "max_seconds"),
            (KeyboardInterrupt(), None, "interrupted"),
            (TimeoutError("no time"), 60, "max_seconds"),
        ],
    )
    def test_regressors_of_others_are_stopped_between_fits(self, fails, seconds, status):
        X, y = curve(300)
        sizes = []
        model = HeteroscedasticRegressor(Counting(sizes, fails), max_seconds=seconds)
        with pytest.warns(UserWarning, match="fit was interrupted|max_seconds"):
            model.fit(X, y)
        assert len(sizes) == (1 if fails is None else 2) and model.fit_report_.status == status
        # The first fold evaluates the fit without it.
        assert sizes[0] == 240 and model.n_residuals_ == 60
        np.testing.assert_allclose(model.predict(X), model.estimator_.predict(X))

    def test_a_regressor_that_promises_no_errors(self):
        """The standard deviations of DummyRegressor are zero; a column has far entries."""
        X, y = curve(150)
        X = np.column_stack([X, np.exp(20 * np.random.default_rng(1).standard_normal(150))])
        model = HeteroscedasticRegressor(DummyRegressor(), random_state=0).fit(X, y)
        assert 0.7 < np.mean(np.square((y - y.mean()) / model.predict_std(X))) < 1.5

    def test_a_second_fit_forgets_the_first_regressor(self):
        X, y = curve(60)
        model = HeteroscedasticRegressor(RFFRegressor(), random_state=0).fit(X, y)
        assert hasattr(model, "kernel_") and hasattr(model, "log_marginal_likelihood_value_")
        model.set_params(estimator=LinearRegression()).fit(X, y)
        assert not hasattr(model, "kernel_")
        assert not hasattr(model, "log_marginal_likelihood_value_")

    def test_settings_that_few_rows_do_not_allow_are_reported(self):
        X, y = curve(15)
        model = HeteroscedasticRegressor(
            LinearRegression(), LinearRegression(), tails="student", random_state=0
        ).fit(X, y)
        ignored = model.fit_report_.ignored
        assert "15 errors" in ignored["tails"] and "15 rows" in ignored["noise_estimator"]
        ends = model.predict_interval(X[:1], 0.95)[0]
        assert np.diff(ends) / model.predict_std(X[:1]) == pytest.approx(2 * norm.ppf(0.975))

    def test_settings_reach_a_regressor_inside_a_pipeline(self):
        X, y = curve(60)
        below = make_pipeline(StandardScaler(), RFFRegressor())
        model = HeteroscedasticRegressor(below, device="cpu", memory_budget=1e9).fit(X, y)
        inner = model.estimator_[-1]
        assert (inner.device, inner.memory_budget) == ("cpu", 1e9)
        below.set_params(rffregressor__device="cuda")
        with pytest.raises(ValueError, match="device='cpu' of Hetero.* contradicts device='cuda'"):
            model.fit(X, y)

    def test_names_of_columns_reach_the_lowest_regressor(self):
        X, y, _ = rows(60)
        frame = pd.DataFrame(X, columns=["a", "b"])
        kernel = Columns(RBF(), ["b"]) + WhiteKernel()
        below = MeanFunctionRegressor(PoERegressor(kernel), LinearRegression())
        model = HeteroscedasticRegressor(below, random_state=0).fit(frame, y)
        assert np.isfinite(model.predict_std(frame)).all()
