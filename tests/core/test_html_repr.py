"""The HTML representation of fitted estimators."""

import re
from html import escape, unescape

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import RBF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from skscalablegp import IterativeGPRegressor, LOVEPredictor
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.training import FitReport

X = np.linspace(0, 1, 20)[:, None]
y = np.sin(6 * X[:, 0])


@pytest.mark.parametrize(
    "model",
    [IterativeGPRegressor(alpha=0.1, max_iter=30), LOVEPredictor(IterativeGPRegressor(alpha=0.1))],
    ids=lambda model: type(model).__name__,
)
def test_the_diagram_of_a_fitted_estimator_ends_with_the_fit_report(model):
    with config_context(display="diagram"):
        assert "Fit report" not in model._repr_html_()
        model.fit(X, y)
        shown = model._repr_html_()
        assert model._repr_mimebundle_()["text/html"].count("Fit report") == 1
    assert type(model).__name__ in shown and shown.count("Fit report") == 1
    assert escape(str(model.fit_report_)) in shown.partition("Fit report")[2]
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}


def test_the_diagram_of_a_pipeline_says_how_the_fit_ended():
    pipeline = make_pipeline(StandardScaler(), IterativeGPRegressor(alpha=0.1, max_iter=30))
    report = pipeline.fit(X, y)[-1].fit_report_
    shown = unescape(estimator_html_repr(pipeline))
    assert "fit_report_" not in shown or repr(report) in shown
    assert repr(report).startswith(f"FitReport({report.status}, ")


def marked(model):
    """The parameters that the diagram lists, and those that it marks as set by the user."""
    with config_context(display="diagram"):
        shown = model._repr_html_()
    rows = re.findall(r'<tr class="(user-set|default)">.*?Copy (\w+) to clipboard', shown, re.S)
    return [name for _, name in rows], {name for kind, name in rows if kind == "user-set"}


@pytest.mark.skipif(not hasattr(BaseEstimator, "_get_params_html"), reason="older diagrams")
class TestMarks:
    def test_of_parameters_of_strings_there_are_none(self):
        listed, marks = marked(IterativeGPRegressor(alpha=0.1))
        assert marks == {"alpha"} and listed[0] == "alpha"
        assert set(listed) == set(IterativeGPRegressor().get_params(deep=False))

    def test_of_an_object_only_what_differs_from_its_default(self):
        model = IterativeGPRegressor(RBF(2.0), preconditioner=PivotedCholesky(rank=7))
        listed, marks = marked(model)
        assert marks == {"kernel", "kernel__length_scale", "preconditioner", "preconditioner__rank"}
        assert "kernel__length_scale_bounds" in listed

    def test_of_an_estimator_inside(self):
        listed, marks = marked(LOVEPredictor(IterativeGPRegressor(max_iter=3), random_state=0))
        assert {"estimator", "random_state", "max_iter"} >= marks >= {"random_state", "max_iter"}
        assert not [name for name in listed if "preconditioner__" in name]


def test_the_report_is_one_line_that_opens():
    model = IterativeGPRegressor(alpha=0.1, max_iter=30).fit(X, y)
    shown = model.fit_report_._repr_html_()
    assert "<details open" not in shown
    line = unescape(re.search(r"<summary[^>]*>(.*?)</summary>", shown, re.S)[1])
    assert line.startswith(f"Fit report: {model.fit_report_.status}, ") and "\n" not in line
    assert "solver=cholesky" in line
    assert "had no effect" not in shown and model.fit_report_.ignored


def test_the_report_is_escaped():
    report = FitReport(
        status="completed",
        stop_reason="a < b & c",
        seconds={"total": 1.0},
        choices={},
        ignored={},
        n_unconverged=0,
        jitter=0.0,
        at_bounds={},
    )
    assert "a &lt; b &amp; c" in report._repr_html_()


def test_the_line_has_only_the_first_line_of_a_summary():
    summary = "exact predicts alone\nmember  weight\nexact   1.00"
    nothing = {name: {} for name in ("choices", "ignored", "at_bounds")}
    counts = {"stop_reason": "", "n_unconverged": 0, "jitter": 0.0}
    report = FitReport(
        status="completed", seconds={"total": 1.0}, summary=summary, **nothing, **counts
    )
    shown = report._repr_html_()
    line = re.search(r"<summary[^>]*>(.*?)</summary>", shown, re.S)[1]
    assert line == "Fit report: completed, 1 s; exact predicts alone"
    # The table below it scrolls on a narrow screen; its lines are not broken.
    (table,) = re.findall(
        r"<pre[^>]*white-space: pre; overflow-x: auto[^>]*>(.*?)</pre>", shown, re.S
    )
    assert table == "member  weight\nexact   1.00"
