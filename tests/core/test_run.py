"""FitRun: commit and restoration, the report and the warnings."""

import pickle
import warnings

import joblib
import numpy as np
import pytest
import torch
from inside import HAS_CALLBACKS, fit_context
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import IterativeGPRegressor, SVGPRegressor
from skscalablegp.core import PARAMETERS, FitRun, GPModel, warn_once
from skscalablegp.core.posteriors import Posterior
from skscalablegp.core.training import StopTraining
from skscalablegp.linalg.solvers import SolveSummary
from skscalablegp.solvers import End


class Model(RegressorMixin, GPModel):
    """The smallest estimator that fits inside a run."""

    def __init__(
        self,
        max_iter=5,
        learning_rate="auto",
        memory_budget="auto",
        device="cpu",
        random_state=0,
        callbacks=None,
        max_seconds=None,
        verbose=0,
    ):
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.memory_budget = memory_budget
        self.device = device
        self.random_state = random_state
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    def _build_posterior(self):
        raise NotImplementedError

    def fit(self, value, body=None, **ended):
        with FitRun(self) as run:
            self.value_ = value
            if body is not None:
                body(run)
            how = {"reason": "converged", "n_iter": 3} | ended
            run.ended(End(how.pop("reason")), **how)
        return self


class Announced(Model):
    """One whose fit scikit-learn's callbacks hear of."""

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, value, body):
        with FitRun(self) as run:
            run.begin(np.zeros((2, 1)), np.zeros(2))
            self.value_ = body(run)
        return self


class Watch:
    """A scikit-learn callback that notes what it hears."""

    def __init__(self):
        self.heard = []

    def setup(self, estimator, context):
        self.heard.append("setup")

    def teardown(self, estimator, context):
        self.heard.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.heard.append("begin")

    def on_fit_task_end(self, estimator, context):
        self.heard.append("end")


class Constant(Posterior):
    """One that the cache can hold."""

    dtype, device, width = torch.float64, torch.device("cpu"), 1

    def mean(self, X):
        return X[:, :1]

    moments = covariance = mean


def failing(error):
    def body(run):
        raise error

    return body


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("no"), KeyboardInterrupt()])
def test_a_failed_refit_leaves_the_old_model_whole(error):
    model = Model().fit(1)
    old = Constant()
    model._remember(old)
    before = dict(vars(model))
    with pytest.raises(type(error)):
        model.fit(2, failing(error))
    assert vars(model) == before and model._remembered() is old


def test_a_failed_first_fit_leaves_nothing():
    model = Model()
    with pytest.raises(ValueError, match="no"):
        model.fit(1, failing(ValueError("no")))
    assert set(vars(model)) == set(model.get_params())


@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
def test_a_failed_fit_tears_callbacks_down():
    watch = Watch()
    model = Announced().set_callbacks(watch)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="no"):
        model.fit(1, failing(ValueError("no")))
    assert watch.heard == ["setup", "begin", "teardown"]
    assert vars(model) == before


def test_the_device_is_known_during_the_fit():
    model = Announced().fit(1, lambda run: run.estimator.device_)
    assert model.value_ == "cpu" == model.device_


def test_a_refit_forgets_the_old_posterior():
    model = Model().fit(1)
    model._remember(Constant())
    model.fit(2)
    assert model._remembered() is None and model.value_ == 2


@pytest.mark.parametrize(
    "reason, planned, status, words",
    [
        ("converged", False, "converged", None),
        ("max_iter", True, "completed", None),
        ("max_epochs", True, "completed", None),
        ("max_iter", False, "max_iter", "Model: max_iter=5 ended training .* raise max_iter"),
        ("callback", False, "callback", None),
        ("interrupted", False, "interrupted", "interrupted after 3 steps"),
        ("diverged", False, "diverged", "learning_rate below 0.5"),
        ("stagnated", False, "stagnated", "the gradient is not small"),
    ],
)
def test_how_training_ended_is_said_once(reason, planned, status, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = Model(learning_rate=0.5).fit(1, reason=reason, planned=planned)
    assert model.fit_report_.status == status and model.fit_report_["n_iter"] == model.n_iter_ == 3
    assert len(caught) == (words is not None)
    if words:
        assert caught[0].category is ConvergenceWarning
        assert caught[0].filename == __file__
        with pytest.warns(ConvergenceWarning, match=words):
            Model(learning_rate=0.5).fit(1, reason=reason, planned=planned)


def test_a_chosen_limit_is_named_with_its_value():
    def body(run):
        run.chose("max_iter", 7, "few rows")

    with pytest.warns(ConvergenceWarning, match="max_iter=7 ended training"):
        Model(max_iter="auto").fit(1, body, reason="max_iter")


def test_warnings_are_of_the_users_line_in_a_parallel_search():
    with pytest.warns(ConvergenceWarning) as caught:
        joblib.Parallel()([joblib.delayed(warn_once)("Not done.")])
    assert caught[0].filename == __file__


def test_several_complaints_are_one_warning():
    def body(run):
        run.warn("Something else.")
        run.solved(SolveSummary(End.MAX_EPOCHS, 0.3, 10.0))

    with pytest.warns(ConvergenceWarning) as caught:
        model = Model().fit(1, body, reason="max_iter")
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "raise max_iter" in text and "Something else." in text and "residual of 0.3" in text
    assert model.fit_report_.n_unconverged == 1 and model.fit_report_.epochs == 10


def test_a_failed_last_solve_is_no_convergence():
    with pytest.warns(ConvergenceWarning):
        model = Model().fit(1, lambda run: run.solved(SolveSummary(End.STAGNATED, 0.3, 10.0)))
    assert model.fit_report_.status == "stagnated"


def test_the_report_has_choices_and_ignored_parameters():
    def body(run):
        assert run.chose("learning_rate", 0.1, "few rows") == 0.1
        run.chose("max_iter", 7, "the user has chosen")
        run.chose("max_seconds", 7, "None is a choice, too")
        run.chose("gradient", "exact", "no parameter of this class")
        run.chose("device", "cpu", "it is there")
        run.ignores("device", "not chosen after all")
        run.ignores("max_iter", "there is nothing to train")
        run.ignores("gradient", "no parameter of this class")
        with run.stage("factor"):
            pass

    report = Model(max_iter=9, device="auto").fit(1, body).fit_report_
    assert set(report.choices) == {"learning_rate"} and report.choices["learning_rate"].value == 0.1
    assert set(report.ignored) == {"device", "max_iter"}
    assert set(report.seconds) == {"factor", "total"}
    assert "learning_rate = 0.1 (few rows)" in str(report)
    assert "max_iter had no effect: there is nothing to train" in str(report)
    untouched = Model().fit(1, body).fit_report_
    assert "max_iter" in untouched.ignored and "max_iter had no effect" not in str(untouched)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StopTraining(End.MAX_SECONDS)])
def test_only_optional_stages_end_early(error):
    def optional(run):
        with run.stage("calibration", optional=True):
            raise error
        assert run.stopped

    expected = "interrupted" if isinstance(error, KeyboardInterrupt) else "max_seconds"
    with pytest.warns(ConvergenceWarning):
        assert Model(max_seconds=100.0).fit(1, optional).fit_report_.status == expected

    def needed(run):
        with run.stage("factor"):
            raise error

    ends = TimeoutError if isinstance(error, StopTraining) else type(error)
    with pytest.raises(ends):
        Model().fit(1, needed)


def test_a_step_shows_the_model_that_it_would_leave():
    """Where there is one; a copy of the step elsewhere has none."""
    seen = []

    def show(model, step):
        if step.theta[0] > 0:
            raise torch.linalg.LinAlgError("no factor")
        model.value_ = float(step.theta[0])

    def body(run):
        run.begin(np.zeros((2, 1)), np.zeros(2))
        for preview, at in [(None, 0.0), (show, -2.0), (show, 1.0)]:
            run.preview = preview
            run.monitor.record_score(np.array([at]), 0.0, 0.0)

    def callback(step):
        model = step.model()
        seen.append(None if model is None else (model.value_, model.n_iter_))
        assert pickle.loads(pickle.dumps(step)).model() is None

    model = Model(callbacks=callback).fit(1, body)
    assert seen == [None, (-2.0, 2), None] and model.value_ == 1

    def wrong(model, step):
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        Model(callbacks=callback).fit(
            1,
            lambda run: (
                setattr(run, "preview", wrong),
                run.monitor.record_score(np.zeros(1), 0.0, 0.0),
            ),
        )


def test_a_last_part_survives_one_interrupt():
    calls = []

    def part():
        calls.append(len(calls))
        if len(calls) in (1, 3):
            raise KeyboardInterrupt
        return "made"

    def body(run):
        assert run.finish("factor", part) == "made"

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        report = Model().fit(1, body).fit_report_
    assert calls == [0, 1] and report.status == "interrupted"
    assert set(report.seconds) == {"factor", "total"}

    def interrupted_before(run):
        run.budget.end(End.INTERRUPTED)
        run.finish("factor", part)

    with pytest.raises(KeyboardInterrupt):
        Model().fit(1, interrupted_before)
    assert len(calls) == 3


class Larger(Model):
    """A user's own, with parameters that the table does not have."""

    _parameter_constraints = {"shift": [int]}

    def __init__(self, max_iter=5, random_state=0, shift=0, label="", *args, **kwargs):
        super().__init__(max_iter, random_state=random_state)
        self.shift, self.label = shift, label


class LargerStill(Larger):
    """Another constructor with the same parameters."""

    def __init__(self, max_iter=7, shift=1):
        super().__init__(max_iter, shift=shift)


def test_a_subclass_may_have_parameters_of_its_own():
    rules = Larger._parameter_constraints
    assert set(rules) == {"max_iter", "random_state", "shift"}
    assert rules["max_iter"] == Model._parameter_constraints["max_iter"]
    assert rules["shift"] == [int]
    assert LargerStill._parameter_constraints == {n: rules[n] for n in ("max_iter", "shift")}


def test_a_subclass_accepts_what_its_base_class_accepts():
    class Fixed(Model):
        def __init__(self, learning_rate=0.1):
            super().__init__(learning_rate=learning_rate)

    rules = Fixed._parameter_constraints["learning_rate"]
    assert rules == Model._parameter_constraints["learning_rate"] != PARAMETERS["max_iter"]
    Fixed("auto")._validate_params()


def test_both_generators_come_from_one_seed():
    drawn = []

    def body(run):
        drawn.append((run.random_state.rand(), float(torch.rand(1, generator=run.generator))))

    for seed in (0, 0, 1):
        Model(random_state=seed).fit(1, body)
    assert drawn[0] == drawn[1] and not np.isclose(drawn[0], drawn[2]).any()


def test_memory_is_refused_within_the_budget():
    with pytest.raises(MemoryError, match="A table needs .* budget is 100 bytes: use fewer rows"):
        Model(memory_budget=100).fit(
            1, lambda run: run.check_memory(1e3, "A table", "use fewer rows")
        )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 80 GB"),
        MemoryError("Unable to allocate 80. GiB for an array"),
        MemoryError(),
        torch.linalg.LinAlgError("linalg.cholesky: the leading minor is not positive-definite"),
    ],
)
def test_failures_below_become_errors_with_a_remedy(error):
    from skscalablegp import RFFRegressor

    X = np.random.default_rng(0).normal(size=(30, 2))
    model = RFFRegressor(n_components=10, max_iter=2, random_state=0).fit(X, X[:, 0])
    before = model.predict(X)

    def fail(step):
        raise error

    kind = MemoryError if "LinAlg" not in type(error).__name__ else ValueError
    words = "memory_budget.*smaller n_components" if kind is MemoryError else "[Rr]aise alpha"
    with pytest.raises(kind, match=f"RFFRegressor: .*{words}") as caught:
        model.set_params(callbacks=fail).fit(X, 1 - X[:, 0])
    assert caught.value.__cause__ is error
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_posterior_of_a_failed_refit_does_not_answer_for_the_old_model(monkeypatch):
    from skscalablegp import SSRFFRegressor

    X = np.random.default_rng(0).normal(size=(30, 2))
    model = pickle.loads(pickle.dumps(SSRFFRegressor(max_iter=2, random_state=0).fit(X, X[:, 0])))
    monkeypatch.setattr(FitRun, "_commit", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, 100 - X[:, 0])
    # The old model had made none yet: the new one's must not be left behind.
    assert abs(model.predict(X) - X[:, 0]).max() < 1


def test_a_limit_tells_the_norm_of_the_gradient():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    model = IterativeGPRegressor(RBF([5.0, 5.0]) + WhiteKernel(1.0), max_iter=2)
    with pytest.warns(ConvergenceWarning, match=r"the norm of the gradient was \d"):
        model.fit(X, y)
    exact = GaussianProcessRegressor(model.kernel, optimizer=None, alpha=1e-10).fit(X, y)
    _, grad = exact.log_marginal_likelihood(model.history_["theta"][-1], eval_gradient=True)
    assert model.fit_report_.gradient_norm == pytest.approx(np.linalg.norm(grad), rel=1e-5)
    # Scores of batches have no gradient.
    assert "gradient_norm" not in SVGPRegressor(n_inducing=5, max_iter=2).fit(X, y).fit_report_


def test_fits_have_gradients_where_users_have_none():
    """As after an interrupt inside `torch.no_grad()`, which may leave it in force."""
    X = np.random.default_rng(0).uniform(-2, 2, (60, 2))
    model = SVGPRegressor(n_inducing=5, max_iter=20, random_state=0)
    expected = model.fit(X, X[:, 0]).predict(X)
    with torch.no_grad():
        again = model.fit(X, X[:, 0]).predict(X)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    np.testing.assert_array_equal(again, expected)
