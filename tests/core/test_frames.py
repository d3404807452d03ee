"""Intervals and quantiles as data frames, from methods and from functions."""

import sys

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import IterativeGPRegressor
from skscalablegp.metrics import predict_interval, predict_quantiles

INDEX = pd.Index([f"row {k}" for k in range(20)], name="names")
X = pd.DataFrame({"a": np.linspace(0, 1, 20)}, index=INDEX)
Y = np.column_stack([np.sin(6 * X["a"]), np.cos(6 * X["a"])])
CHOICES = [("predict_interval", predict_interval, (0.9,), ["lower", "upper"])]
CHOICES += [("predict_quantiles", predict_quantiles, ([0.1, 0.7],), [0.1, 0.7])]


def fitted(targets):
    return IterativeGPRegressor(random_state=0, max_iter=5).fit(X, targets)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method, function, arguments, columns", CHOICES)
class TestFrames:
    def test_of_one_target(self, method, function, arguments, columns):
        model = fitted(Y[:, 0])
        expected = getattr(model, method)(X, *arguments)
        assert isinstance(expected, np.ndarray)
        for frame in (
            getattr(model, method)(X, *arguments, as_frame=True),
            function(model, X, *arguments, as_frame=True),
        ):
            assert isinstance(frame, pd.DataFrame) and list(frame.columns) == columns
            pd.testing.assert_index_equal(frame.index, INDEX)
            assert_array_equal(frame.to_numpy(), expected)

    def test_of_several_targets(self, method, function, arguments, columns):
        model = fitted(Y)
        expected = getattr(model, method)(X, *arguments)
        for frame in (
            getattr(model, method)(X, *arguments, as_frame=True),
            function(model, X, *arguments, as_frame=True),
        ):
            assert frame.columns.nlevels == 2
            for target in (0, 1):
                assert list(frame[target].columns) == columns
                assert_array_equal(frame[target].to_numpy(), expected[:, target])

    def test_through_a_pipeline_that_drops_the_index(self, method, function, arguments, columns):
        model = make_pipeline(StandardScaler(), IterativeGPRegressor(max_iter=5, random_state=0))
        frame = function(model.fit(X, Y[:, 0]), X, *arguments, as_frame=True)
        pd.testing.assert_index_equal(frame.index, INDEX)

    def test_an_array_has_row_numbers(self, method, function, arguments, columns):
        model = fitted(Y[:, 0])
        with pytest.warns(UserWarning, match="feature names"):
            frame = getattr(model, method)(X.to_numpy(), *arguments, as_frame=True)
        assert list(frame.index) == list(range(20))

    def test_without_pandas_the_error_says_what_to_do(
        self, method, function, arguments, columns, monkeypatch
    ):
        model = fitted(Y[:, 0])
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="as_frame=False"):
            getattr(model, method)(Y[:, :1], *arguments, as_frame=True)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_probability_is_one_column():
    model = fitted(Y[:, 0])
    frame = model.predict_quantiles(X, 0.5, as_frame=True)
    assert list(frame.columns) == [0.5]
    assert_array_equal(frame[0.5], model.predict_quantiles(X, 0.5))
