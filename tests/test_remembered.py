"""Searches that are made once give what those give that are made again."""

import checked_shapes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import IterativeGPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(7).uniform(-2, 2, (30, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * np.cos(9 * X[:, 1])


def fit(y=Y, **settings):
    return IterativeGPRegressor(max_iter=2, **settings).fit(X, y)


@pytest.fixture
def searches(stand_in):
    """The rows of each search that is made."""
    made = []
    compare = stand_in(
        "_Search.compare", lambda self: made.append(self._problem.X) or compare(self)
    )
    return made


def test_a_search_is_made_once_for_the_same_rows_kernel_and_settings(
    searches, request, monkeypatch
):
    monkeypatch.setattr(checked_shapes, "CHECKED_CALLS", 1)  # the night remembers nothing
    plain = fit()
    assert len(searches) == 1
    request.getfixturevalue("remembered_starts")
    first, again = fit(), fit()
    assert len(searches) == 2
    for model in (first, again):
        assert_array_equal(model.predict(X), plain.predict(X))
        assert model.fit_report_.seconds.keys() == plain.fit_report_.seconds.keys()
        assert model.history_["theta"][0].tolist() == plain.history_["theta"][0].tolist()
    fit(Y + 1e-9 * X[:, 0])
    fit(kernel=RBF() + WhiteKernel())
    assert len(searches) == 4
    for _ in range(2):
        fit(max_seconds=1e6)
    assert len(searches) == 6


@pytest.mark.fresh_starts
@pytest.mark.usefixtures("remembered_starts")
def test_a_test_may_ask_for_searches_of_its_own(searches):
    fit()
    fit()
    assert len(searches) == 2
