"""How a fit goes: budgets, callbacks, interrupts, reports, and settings inside names."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from inside import clock
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV

from skscalablegp import IterativeGPRegressor, RRCGRegressor, SSRFFRegressor
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import AP, CG
from skscalablegp.truncation import FixedTruncation, Truncation, TruncationDistribution

MODELS = {
    "exact": IterativeGPRegressor(random_state=0),
    "solve": IterativeGPRegressor(solver="cg", n_probes=4, random_state=0),
    "pathwise": IterativeGPRegressor(
        solver="block_cg", posterior="pathwise", n_probes=8, subset_size=20, random_state=0
    ),
    "rrcg": RRCGRegressor(truncation="exponential", random_state=0),
    "rrcg-subset": RRCGRegressor(subset_size=20, posterior="solve", random_state=0),
}
each_model = pytest.mark.parametrize("name", MODELS)


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def kernel():
    return ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)


def model_of(name, **settings):
    return clone(MODELS[name]).set_params(kernel=kernel(), **settings)


def fitted(model, X, y):
    """The fitted model and the texts of its ConvergenceWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return model, [str(w.message) for w in caught if w.category is ConvergenceWarning]


def assert_usable(model, X):
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()


# ---------------------------------------------------------------- what is reported


@pytest.mark.parametrize("noise", [0.1, 1e-7])
@pytest.mark.parametrize("solver", ["auto", "block_cg"])
def test_the_report_tells_what_was_really_used(solver, noise, thresholds):
    """Where the subsets show that float32 will not do, training leaves what it had planned."""
    thresholds(FLOAT64_ROWS=30, SUBSET_ROWS=20, EXACT_TRAINING_ROWS=30)
    X, y = table(80)
    rough = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(noise, "fixed")
    model = IterativeGPRegressor(
        rough, solver=solver, train_on="all", max_iter=20, posterior="exact", random_state=0
    )
    model, _ = fitted(model, X, y)
    report, choices = model.fit_report_, model.fit_report_.choices
    ill = noise < 1e-3
    assert choices["dtype"].value == model.dtype_ == ("float64" if ill else "float32")
    assert ("badly conditioned" in choices["dtype"].reason) == ill
    assert f"in {model.dtype_} on cpu" in report.summary
    factorised = ill and solver == "auto"
    assert model.solver_ == ("cholesky" if factorised else "block_cg")
    assert not set(choices) & set(report.ignored)
    for name in ("preconditioner", "n_probes", "training_max_epochs"):
        assert (name in report.ignored) == factorised
    if solver == "auto":
        assert choices["solver"].value == model.solver_
        assert (choices["gradient"].value == "exact") == factorised
    objective = [
        value
        for stage, value in zip(model.history_["stage"], model.history_["objective"], strict=True)
        if stage == "full"
    ]
    assert np.isfinite(objective).all() == factorised
    assert objective
    # By default, all rows are left to the factorisation for predictions.
    model.set_params(max_iter="auto", train_on="auto")
    default, _ = fitted(model, X, y)
    assert ("full" in default.history_["stage"]) == (solver == "block_cg")
    choices = default.fit_report_.choices
    assert (choices["max_iter"].value == 0) == (solver == "auto")


# ---------------------------------------------------------------- how it ends


@each_model
def test_defaults_do_not_warn(name):
    X, y = table()
    model, messages = fitted(model_of(name), X, y)
    # The gradients of RRCG with random truncation are so noisy that one seed in eight walks around
    # the optimum to the last step, and which one depends on the last digits of the rows.
    ends = {"max_iter": 1} if name == "rrcg" else {}
    assert len(messages) == (ends | {"converged": 0, "completed": 0})[model.fit_report_.status]
    assert model.n_samples_seen_ == 60 and model.fit_report_.seconds["final solve"] > 0


@each_model
def test_one_step_is_one_warning_that_names_max_iter(name):
    X, y = table()
    model, messages = fitted(model_of(name, max_iter=1, n_iter_no_change=None), X, y)
    assert len(messages) == 1 and "raise max_iter" in messages[0]
    assert model.fit_report_.status == "max_iter"


@each_model
def test_no_time_is_a_usable_model(name):
    X, y = table()
    model, messages = fitted(model_of(name, max_seconds=1e-9), X, y)
    assert len(messages) == 1 and "max_seconds=1e-09" in messages[0]
    assert model.fit_report_.status == "max_seconds" and model.n_iter_ == 1
    assert_usable(model, X)


def test_the_time_budget_holds_in_the_final_solve():
    X, y = table(400)
    model = IterativeGPRegressor(
        1.0 * RBF(3.0) + WhiteKernel(1e-6),
        solver=CG(),
        solver_tol=1e-15,
        solver_max_epochs=1e9,
        optimizer=None,
        max_seconds=0.5,
    )
    # Each look at the clock takes 10 ms, so that the machine's speed does not matter.
    looks = itertools.count()
    with clock(lambda: next(looks) * 0.01):
        model, messages = fitted(model, X, y)
    assert len(messages) == 1 and "(max_seconds)" in messages[0]
    assert model.fit_report_.status == "max_seconds"
    assert model.fit_report_.seconds["final solve"] < 0.6
    # What it had reached is the answer: better than zero in the norm that the steps decrease.
    assert 2 * y @ model.alpha_ > model.alpha_ @ model.kernel_(X) @ model.alpha_ > 0


@each_model
def test_a_callback_stops_at_the_first_step(name):
    X, y = table()
    model, messages = fitted(model_of(name, callbacks=lambda step: True), X, y)
    assert messages == [] and model.fit_report_.status == "callback" and model.n_iter_ == 1
    # Also in a subset: what solves is still what was planned for all rows.
    assert model.solver_ == {"exact": "cholesky", "pathwise": "block_cg"}.get(name, "cg")
    assert_usable(model, X)


@pytest.mark.parametrize("name, stage", [(n, "full") for n in MODELS] + [("pathwise", "20")])
def test_an_interrupt_in_training_keeps_a_model(name, stage):
    X, y = table()

    def interrupt(step):
        if step.stage == stage and step.iteration == 2:
            raise KeyboardInterrupt

    model, messages = fitted(model_of(name, callbacks=interrupt), X, y)
    assert len(messages) == 1 and "interrupted" in messages[0]
    assert model.fit_report_.status == "interrupted" and model.history_["stage"][-1] == stage
    assert_usable(model, X)


@each_model
def test_a_refit_that_fails_leaves_the_old_model(name):
    X, y = table()
    model, _ = fitted(model_of(name, max_iter=2), X, y)
    before, attributes = model.predict(X, return_std=True), dict(vars(model))

    def fail(step):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        model.set_params(callbacks=fail).fit(X[:30], y[:30])
    assert vars(model).keys() == attributes.keys() and model.n_samples_seen_ == 60
    for a, b in zip(model.predict(X, return_std=True), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_interrupted_final_solve_is_kept_as_far_as_it_came(stand_in):
    X, y = table(200)
    taken = []

    def interrupted(self, operator, state):
        taken.append(None)
        if len(taken) == 9:
            raise KeyboardInterrupt
        return step(self, operator, state)

    step = stand_in("CG.step", interrupted)
    # Columns of an extreme size are solved for in other units.
    model = IterativeGPRegressor(
        1e50 * RBF(1.0) + WhiteKernel(1e48), solver=CG(), optimizer=None, solver_tol=1e-12
    )
    model, messages = fitted(model, X, 1e25 * y)
    assert len(messages) == 1 and "interrupted" in messages[0] and len(taken) == 9
    assert model.fit_report_.status == "interrupted"
    residual = 1e25 * y - model.kernel_(X) @ model.alpha_
    relative = np.linalg.norm(residual) / np.linalg.norm(1e25 * y)
    assert 1e-12 < relative < 0.5
    np.testing.assert_allclose(model.fit_report_.residuals, relative, rtol=1e-3)


@pytest.mark.parametrize(
    "posterior, part", [("exact", "ExactPosterior.of"), ("solve", "final_solve")]
)
def test_what_there_is_no_model_without_is_done_again_once(posterior, part, stand_in, monkeypatch):
    X, y = table()
    calls = []

    def interrupted(*args):
        calls.append(None)
        if len(calls) == 1 or twice:
            raise KeyboardInterrupt
        return whole(*args)

    whole = stand_in(part, interrupted)
    model = IterativeGPRegressor(kernel(), posterior=posterior, random_state=0)
    twice = False
    model, messages = fitted(model, X, y)
    assert len(calls) == 2 and "interrupted" in messages[0]
    assert model.fit_report_.status == "interrupted"
    before, twice = model.predict(X), True
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:30], y[:30])
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X), before)


def test_an_interrupted_likelihood_leaves_the_solution(thresholds, stand_in):
    X, y = table(100)
    thresholds(SOLVED_VARIANCE_ROWS=10)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    stand_in("LogDet.estimate", interrupted)
    model = IterativeGPRegressor(kernel(), solver="cg", optimizer=None, random_state=0)
    model, _ = fitted(model, X, y)
    assert model.fit_report_.status == "interrupted"
    assert np.isnan(model.log_marginal_likelihood_value_)
    exact = GaussianProcessRegressor(kernel(), optimizer=None).fit(X, y)
    np.testing.assert_allclose(model.predict(X), exact.predict(X), atol=0.05)


# ---------------------------------------------------------------- budgets and reports


def test_rrcg_takes_the_steps_it_is_given():
    """No budget but the user's ends them; 60 iterations a step are more than 600 after ten."""
    X, y = table(300)
    model = RRCGRegressor(
        subset_size=100,
        truncation=FixedTruncation(60),
        preconditioner=None,
        reorthogonalize=False,
        optimizer="adam",
        max_iter=25,
        n_iter_no_change=None,
        random_state=0,
    )
    model, _ = fitted(model, X, y)
    assert model.history_["stage"].count("full") == 25
    assert model.fit_report_.choices["training_max_epochs"].value is None


def test_the_budget_of_training_names_itself():
    X, y = table(150)
    settings = {"solver": CG(), "subset_size": 50, "solver_tol": 1e-8, "random_state": 0}
    model = IterativeGPRegressor(kernel(), training_max_epochs=5, **settings)
    model, messages = fitted(model, X, y)
    assert model.fit_report_.status == "max_iter" and "raise training_max_epochs" in messages[0]
    auto, messages = fitted(IterativeGPRegressor(kernel(), **settings), X, y)
    assert messages == []
    assert auto.fit_report_.choices["training_max_epochs"].value == 600


def test_the_report_says_what_auto_became_and_what_was_ignored():
    X, y = table()
    settings = {"n_probes": 5, "learning_rate": 0.3, "random_state": 0}
    exact, _ = fitted(IterativeGPRegressor(kernel(), **settings), X, y)
    report = exact.fit_report_
    assert {"solver_tol", "n_probes", "learning_rate", "preconditioner"} <= set(report.ignored)
    assert "n_restarts_optimizer" not in report.ignored
    chosen = {name: choice.value for name, choice in report.choices.items()}
    assert chosen["solver"] == "cholesky" and chosen["gradient"] == "exact"
    assert chosen["posterior"] == "exact" and chosen["optimizer"] == "bfgs"
    assert all(choice.reason for choice in report.choices.values())
    solved, _ = fitted(IterativeGPRegressor(kernel(), solver="cg", random_state=0), X, y)
    report = solved.fit_report_
    assert "n_restarts_optimizer" in report.ignored and "solver_tol" not in report.ignored
    chosen = {name: choice.value for name, choice in report.choices.items()}
    assert chosen["optimizer"] == "natural" and "learning_rate" in report.ignored
    assert chosen["n_probes"] == 32 and chosen["preconditioner"].rank == 200
    nothing, _ = fitted(IterativeGPRegressor(kernel(), optimizer=None), X, y)
    assert {"max_iter", "gradient", "subset_size"} <= set(nothing.fit_report_.ignored)


# ---------------------------------------------------------------- names and what is inside


def test_settings_inside_names():
    model = IterativeGPRegressor(solver="cg")
    inner = model.get_params(deep=True)
    assert inner["solver__preconditioner__rank"] == inner["preconditioner__rank"] == 200
    model.set_params(solver__preconditioner__rank=7)
    assert isinstance(model.solver, CG)
    assert model.solver.preconditioner.rank == 7 and model.solver.preconditioner.randomized
    model = IterativeGPRegressor(solver=CG("nystrom")).set_params(solver__preconditioner__rank=3)
    assert model.solver.preconditioner.rank == 3
    assert type(model.solver.preconditioner).__name__ == "Nystrom"
    with pytest.raises(ValueError, match="Invalid parameter 'preconditioner'"):
        IterativeGPRegressor(solver=AP()).set_params(solver__preconditioner__rank=3)
    model = IterativeGPRegressor().set_params(preconditioner__rank=9)
    assert model.preconditioner.rank == 9 and model.preconditioner.randomized
    model = IterativeGPRegressor().set_params(
        gradient__n_probes=5, gradient="pathwise", solver="ap"
    )
    assert model.gradient.n_probes == 5 and model.gradient.solver == "ap"
    model = RRCGRegressor().set_params(truncation__rate=0.2, preconditioner__rank=9)
    assert model.truncation.rate == 0.2 and model.preconditioner.rank == 9
    assert RRCGRegressor(truncation="fixed").get_params()["truncation__n_iter"] == 20


def test_a_search_goes_into_names():
    X, y = table(40)
    search = GridSearchCV(
        IterativeGPRegressor(kernel(), solver="cg", max_iter=1, n_probes=2, random_state=0),
        [
            {"solver__preconditioner__rank": [2, 4]},
            {"gradient": ["standard"], "gradient__n_probes": [2, 3], "n_probes": ["auto"]},
            {"solver": ["cholesky", "cg"]},
        ],
        cv=2,
        error_score="raise",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    assert len(search.cv_results_["params"]) == 6


@pytest.mark.parametrize("truncation", ["exponential", "geometric", "reciprocal", "fixed"])
def test_truncations_by_name(truncation):
    X, y = table(40)
    model, _ = fitted(RRCGRegressor(kernel(), truncation=truncation, max_iter=2), X, y)
    assert_usable(model, X)


class ThreeOrFour(TruncationDistribution):
    """As little as a user has to write."""

    def __init__(self, fewest=3):
        self.fewest = fewest

    def on(self, n, start=1):
        assert start == 1  # the smallest number of steps is not left open
        halves = torch.full((2,), 0.5, dtype=torch.float64)
        return Truncation(self.fewest, self.fewest + 1, halves, halves.flip(0).cumsum(0).flip(0))


def test_a_truncation_of_ones_own():
    X, y = table(40)
    model = RRCGRegressor(kernel(), truncation=ThreeOrFour(), preconditioner=None, max_iter=3)
    model, _ = fitted(model, X, y)
    assert not ThreeOrFour().adapts and model.get_params()["truncation__fewest"] == 3
    assert_usable(model, X)

    class Alike:
        on = ThreeOrFour.on

    for estimator in (RRCGRegressor, SSRFFRegressor):
        with pytest.raises(ValueError, match="truncation <.*a subclass of .*TruncationDistrib"):
            estimator(truncation=Alike()).fit(X, y)


# ---------------------------------------------------------------- predictions


def test_means_and_variances_look_at_the_kernel_once(stand_in, monkeypatch):
    X, y = table()
    calls = []

    def counted(self, X):
        made = cross(self, X)
        for name in ("matmul", "to_dense"):
            inner = getattr(made, name)
            setattr(made, name, lambda *args, f=inner: (calls.append(None), f(*args))[1])
        return made

    for name in ("exact", "neighbors", "solve", "pathwise"):
        ours = model_of("solve" if name == "neighbors" else name, max_iter=2, posterior=name)
        model, _ = fitted(ours, X, y)
        expected = model.predict(X + 0.1), model.predict_std(X + 0.1)
        cross = stand_in("KernelOperator.cross", counted)
        calls.clear()
        both = model.predict(X + 0.1, return_std=True)
        monkeypatch.undo()
        assert len(calls) == 1, name
        for a, b in zip(both, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_changed_parameters_do_not_change_a_fitted_model():
    X, y = table()
    solver = CG(PivotedCholesky(20), residual_refresh=None)
    model, _ = fitted(model_of("solve", solver=solver, max_iter=2), X, y)
    before = model.predict_std(X + 0.1)
    model.set_params(solver__preconditioner__rank=1)
    model._remember(None)
    np.testing.assert_array_equal(model.predict_std(X + 0.1), before)
    model.set_params(solver=AP(), solver_max_epochs=1, preconditioner=PivotedCholesky(3))
    model._remember(None)
    np.testing.assert_array_equal(model.predict_std(X + 0.1), before)
