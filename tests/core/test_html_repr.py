"""The HTML representation of fitted estimators."""

from html import escape, unescape

import numpy as np
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from skscalablegp import IterativeGPRegressor, LOVEPredictor
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
