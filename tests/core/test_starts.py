"""Starting hyperparameters: found where the given ones cannot learn, and kept where they can."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    Matern,
    WhiteKernel,
)

from skscalablegp import IterativeGPRegressor, SGPRRegressor, SVGPClassifier, SVGPRegressor
from skscalablegp.core import Run, Start, choose_start, data_scaled_kernel
from skscalablegp.core._signal import simple_signals
from skscalablegp.core._starts import Layout, _Search
from skscalablegp.core.training import Budget, Monitor
from skscalablegp.kernels import Columns, compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood


def wide(n=500, d=30, seed=0):
    """Independent columns, of which the product of two matters."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    one, other = (3, 7) if d > 7 else (0, 1)
    return X, np.sin(2 * X[:, one]) * X[:, other] + 0.1 * rng.standard_normal(n)


def problem_of(X, y, kernel=None):
    y = (y - y.mean()) / y.std()
    compiled = compile_kernel(data_scaled_kernel(X, y) if kernel is None else kernel, X.shape[1])
    zeros = torch.zeros(len(X), dtype=torch.float64)
    return GPProblem(compiled, Rows.of(torch.tensor(X), torch.tensor(y[:, None]), zeros))


def run(max_seconds=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Run(Monitor(budget=Budget(max_seconds)), generator, np.random.RandomState(seed))


def chosen(problem, **settings):
    return choose_start(problem, problem.kernel.theta0.numpy(), run(**settings))


def value(problem, theta):
    return exact_marginal_likelihood(problem, torch.as_tensor(theta), False).value / len(problem.X)


@pytest.mark.slow
def test_wide_tables_start_at_the_columns_that_matter():
    X, y = wide()
    problem = problem_of(X, y)
    start = chosen(problem)
    scales = start.theta[1:31]
    # The two shortest length scales are those of the columns that matter.
    assert set(np.argsort(scales)[:2]) == {3, 7}
    assert value(problem, start.theta) > value(problem, problem.kernel.theta0) + 0.5
    assert start.origin in start.describe()


@pytest.mark.slow
def test_training_goes_on_from_there():
    X, y = wide(700)
    model = IterativeGPRegressor().fit(X[:500], y[:500])
    assert model.score(X[500:], y[500:]) > 0.9
    assert model.fit_report_.start in str(model.fit_report_)


@pytest.mark.parametrize("frequency", [1.0, 20.0])
def test_length_scales_of_one_column(frequency):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    y = np.sin(frequency * X[:, 0]) + 0.1 * rng.standard_normal(200)
    model = IterativeGPRegressor().fit(X[:150], y[:150])
    assert model.score(X[150:], y[150:]) > 0.9


def test_the_given_values_stay_where_they_are_best():
    """They come first among equals, and other starts have to be better."""
    X, y = wide(150, 3)
    best = ConstantKernel() * Matern(np.ones(3), nu=1.5) + WhiteKernel(0.1)
    trained = IterativeGPRegressor(best, normalize_y=True).fit(X, y).kernel_
    problem = problem_of(X, y, trained)
    start = chosen(problem)
    assert value(problem, start.theta) >= value(problem, problem.kernel.theta0) - 1e-9
    assert_allclose(start.theta, problem.kernel.theta0, atol=0.3)


def test_starts_stay_within_the_bounds():
    X, y = wide(200, 4)
    kernel = ConstantKernel(1.0, "fixed") * Matern(np.ones(4), (0.5, 2.0), nu=1.5)
    problem = problem_of(X, y, kernel + WhiteKernel(0.1, (0.05, 0.2)))
    start = chosen(problem)
    low, high = problem.kernel.bounds.numpy().T
    assert ((start.theta >= low) & (start.theta <= high)).all()
    assert len(start.theta) == 5


@pytest.mark.parametrize(
    "kernel, moves",
    [
        (RBF(0.01) + WhiteKernel(), True),
        (Columns(RBF([0.01, 0.01]), [3, 7]) + WhiteKernel(), True),
        (RBF(0.01) + RBF(0.02) + WhiteKernel(), True),
        (Columns(ExpSineSquared(0.01, 1.0), 0) + WhiteKernel(), False),
        (RBF(0.01, "fixed") + WhiteKernel(), False),
    ],
    ids=str,
)
def test_only_distances_between_rows_move(kernel, moves):
    """A length scale of a period is none, and what is fixed stays."""
    X, y = wide(200, 8)
    problem = problem_of(X, X[:, 3] + 0.1 * y, kernel)
    start = chosen(problem)
    assert (start.origin != "the given values") == moves
    assert value(problem, start.theta) >= value(problem, problem.kernel.theta0)


def test_starts_do_not_depend_on_seeds_and_leave_them_alone():
    X, y = wide(200, 5)
    problem = problem_of(X, y)
    first = run(seed=1)
    before = first.generator.get_state()
    start = choose_start(problem, problem.kernel.theta0.numpy(), first)
    assert_array_equal(first.generator.get_state(), before)
    assert_array_equal(start.theta, chosen(problem, seed=2).theta)


def test_a_spent_budget_compares_likelihoods_all_the_same():
    """The comparison of starts is what a short budget needs most; steps come later."""
    X, y = wide(300, 10)
    y = X[:, 0] + X[:, 1] + 0.1 * y
    problem = problem_of(X, y)
    start = chosen(problem, max_seconds=1e-9)
    assert start.origin == "the spread of the columns"
    assert value(problem, start.theta) > value(problem, problem.kernel.theta0) + 0.1


def test_an_interrupt_keeps_the_best_start(stand_in):
    X, y = wide(200, 5)
    model = IterativeGPRegressor()

    def interrupted(*args):
        raise KeyboardInterrupt

    stand_in("simple_signals", interrupted, at="_starts")
    with pytest.warns(match="interrupted"):
        model.fit(X, y)
    assert model.fit_report_.status == "interrupted"
    assert np.isfinite(model.predict(X[:3])).all()


def test_callables_and_scikit_learns_optimizer_begin_where_users_say():
    X, y = wide(60, 3)
    kernel, seen = RBF(0.3) + WhiteKernel(0.5), []

    def optimizer(objective, theta, bounds):
        seen.append(theta)
        return theta, 0.0

    for choice in (optimizer, "fmin_l_bfgs_b"):
        steps = []
        model = IterativeGPRegressor(kernel, optimizer=choice, callbacks=steps.append)
        model.fit(X, y)
        assert_allclose(steps[0].theta, kernel.theta)
    assert_allclose(seen[0], kernel.theta)


def test_limits_hold_for_starts():
    """One step is the evaluation of the start itself."""
    X, y = wide(200, 5)
    problem = problem_of(X, y)
    start = choose_start(problem, problem.kernel.theta0.numpy(), run(), max_iter=1)
    further = choose_start(problem, problem.kernel.theta0.numpy(), run(), max_iter=8)
    assert value(problem, further.theta) > value(problem, start.theta) + 0.01


class TestSignals:
    def test_trees_find_products_and_lines_find_slopes(self):
        X, y = wide(1500, 12)
        product, line = simple_signals(X, y[:, None])
        assert product.model == "boosted trees" and product.clear
        assert set(np.argsort(product.relevance)[-2:]) == {3, 7}
        slope = 0.5 * X[:, 5] + np.random.default_rng(1).standard_normal(1500)
        best = simple_signals(X, slope[:, None])[0]
        assert best.model == "a linear model" and best.clear
        assert np.argmax(best.relevance) == 5
        # The share of the variance: 0.25 of 1.25.
        assert_allclose(best.explained, 0.2, atol=0.06)

    @pytest.mark.parametrize("row", [17, 550], ids=["to learn from", "held out"])
    def test_a_far_entry_costs_a_line_nothing(self, row):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((600, 6))
        y = X[:, 0] + X[:, 3] + 0.3 * rng.standard_normal(600)
        X[row, 0] = 1e6
        line = next(s for s in simple_signals(X, y[:, None]) if s.model == "a linear model")
        assert line.explained > 0.9 and set(np.argsort(line.relevance)[-2:]) == {0, 3}

    def test_noise_is_not_clear(self):
        rng = np.random.default_rng(0)
        clear = [
            signal.clear
            for _ in range(10)
            for signal in simple_signals(
                rng.standard_normal((300, 8)), rng.standard_normal((300, 1))
            )
        ]
        assert sum(clear) == 0

    def test_units_and_several_targets(self):
        X, y = wide(600, 6)
        one = simple_signals(X, y[:, None])[0]
        scaled = simple_signals(X, 1e6 * y[:, None] + 5e7)[0]
        assert_allclose(one.explained, scaled.explained, rtol=1e-6)
        several = simple_signals(X, np.column_stack([y, X[:, 0], np.ones(600)]))[0]
        assert several.clear and set(np.argsort(several.relevance)[-2:]) == {0, 1}
        assert_array_equal(several.targets, [0, 1])

    @pytest.mark.parametrize("n, y", [(50, None), (200, 0.0)])
    def test_nothing_to_say(self, n, y):
        X, own = wide(n, 8)
        assert simple_signals(X, (own if y is None else np.full(n, y))[:, None]) == []


@pytest.mark.slow
def test_a_column_that_helps_others_is_found_after_them():
    """Alone it looks like noise, and its length scale has grown out of reach of any slope."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 12))
    strong = np.sin(2 * X[:, 2]) + np.cos(2 * X[:, 7])
    problem = problem_of(X, strong + 0.3 * np.sin(2 * X[:, 4]) + 0.1 * rng.standard_normal(500))
    start = chosen(problem)
    assert set(np.argsort(start.theta[1:13])[:3]) == {2, 4, 7}
    gone = start.theta.copy()
    gone[1 + 4] = 7.0
    assert value(problem, start.theta) > value(problem, gone) + 0.02
    # From there, the comparison of likelihoods finds it again.
    search = _Search(problem, Start("lost", gone), run(), 8)
    search._trained(search._rows(500), [Start("lost", gone)])
    search.best = Start("lost", gone, value(problem, gone), gone)
    search.reconsider()
    assert search.best.theta[1 + 4] < 4 < gone[1 + 4]


@pytest.mark.slow
def test_a_steep_column_beside_strong_smooth_ones_is_found():
    """What it explains has been taken for noise, which has to fall together with its length."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 12))
    smooth = np.sin(X[:, 1]) + X[:, 2] * X[:, 3]
    y = np.sin(9 * X[:, 0]) + smooth + 0.2 * rng.standard_normal(500)
    start = chosen(problem_of(X, y))
    assert set(np.argsort(start.theta[1:13])[:4]) == {0, 1, 2, 3}


def test_of_two_columns_one_may_be_steep_and_the_other_smooth():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.sin(25 * X[:, 0]) + np.sin(X[:, 1]) + 0.2 * rng.standard_normal(400)
    steep, smooth = chosen(problem_of(X, y)).theta[1:3]
    assert steep < np.log(0.3) and smooth > np.log(2)


@pytest.mark.slow
def test_columns_rightly_left_out_stay_so():
    """A hundred one-hot columns, of which three matter a little, and four others."""
    rng = np.random.default_rng(0)
    Z, L = rng.standard_normal((600, 4)), np.eye(100)[rng.integers(100, size=600)]
    f = np.sin(2 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + L[:, :3] @ [1.0, -1.0, 1.0]
    y = f + 0.5 * rng.standard_normal(600)
    model = IterativeGPRegressor(random_state=0).fit(np.hstack([Z, L]), y)
    # Training on the four columns alone ends at -417.
    assert model.log_marginal_likelihood_value_ > -400


def test_columns_left_out_begin_where_the_likelihood_of_all_rows_shows_them():
    """The oracle is the information of all rows, from scikit-learn's derivatives of the kernel."""
    X, y = wide(400, 12)
    problem = problem_of(X, y)
    start = chosen(problem)
    kernel = problem.kernel.to_sklearn(torch.as_tensor(start.theta))
    H, slopes = kernel(X, eval_gradient=True)
    half = np.linalg.solve(H, np.moveaxis(slopes[:, :, 1:13], 2, 0))
    information = 0.5 * np.einsum("jab,jba->j", half, half)
    used = np.isin(np.arange(12), [3, 7])
    assert information[used].min() > 20
    assert information[~used].min() > 0.2 and information[~used].max() < 5
    # They remain long beside those that matter.
    assert start.theta[1:13][~used].min() > start.theta[1:13][used].max() + 2


def test_columns_inside_columns_are_counted_from_the_outside():
    kernel = Columns(Columns(RBF(1.0), [1]), [2, 0]) + WhiteKernel()
    assert list(Layout.of(compile_kernel(kernel, 3)).columns) == [0]


def test_a_users_optimizer_begins_where_it_says_whatever_its_type():
    X, y = wide(60, 2)
    begun = []

    class Own:
        def __call__(self, objective, theta, bounds):
            begun.append(theta.copy())
            return theta, objective(theta, eval_gradient=False)

    kernel = ConstantKernel(2.0) * RBF([1.0, 1.0]) + WhiteKernel(0.5)
    for optimizer in (Own(), Own().__call__):
        IterativeGPRegressor(kernel, optimizer=optimizer).fit(X, y)
    for theta in begun:
        assert_allclose(theta, kernel.theta)


@pytest.mark.parametrize("model", [SGPRRegressor, SVGPRegressor])
def test_inducing_points_limit_the_steps_of_starts(model, stand_in):
    limits = []

    def choose(problem, theta, run, max_iter, *rest):
        limits.append(max_iter)
        return Start("the given values", theta)

    stand_in("choose_start", choose)
    X, y = wide(300, 3)
    kernel = ConstantKernel() * RBF([1.0, 1.0, 1.0]) + WhiteKernel(0.5)
    with pytest.warns(ConvergenceWarning):
        model(kernel, n_inducing=20, max_iter=1).fit(X, y)
    assert limits == [1]


def test_many_columns_are_permuted_in_blocks():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 150))
    y = X[:, [40]] + np.sign(X[:, [120]])
    for signal in simple_signals(X, y):
        assert set(np.argsort(signal.relevance)[-2:]) == {40, 120}
        assert (signal.relevance > 0.01 * signal.relevance.max()).sum() == 2


def test_kernels_on_the_same_rows_share_what_simple_models_explain(stand_in):
    asked = []

    def ask(X, Y):
        asked.append(Y.shape)
        return simple_signals(X, Y)

    stand_in("simple_signals", ask)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (150, 2))
    SVGPClassifier(max_iter=2, random_state=0).fit(X, X[:, 0] > 0)
    # One regression has a single length scale, the other one a scale for each column.
    assert asked == [(150, 1)]
