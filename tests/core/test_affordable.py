"""Models that are too large for a time budget: sizes that it leaves time for."""

import numpy as np
import pytest
from inside import clock
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from test_run import Model

from skscalablegp import NNGPRegressor, RFFRegressor, SGPRRegressor, SVGPRegressor
from skscalablegp.core import affordable_size


@pytest.fixture
def seconds():
    passed = [0.0]
    with clock(lambda: passed[0]):
        yield passed


def sized(size, n, a, b, seconds, limit=10.0):
    """A fit, the size that its budget leaves of a model of a m^2 rows + b m^3 s, and calls."""
    found, asked = [], []

    def evaluate(m, rows):
        asked.append((m, rows))
        seconds[0] += a * m**2 * rows + b * m**3

    def body(run):
        found.append(affordable_size("max_iter", size, n, evaluate, run))

    return Model(max_seconds=limit).fit(1, body), found[0], asked


@pytest.mark.parametrize(("a", "b"), [(2e-10, 0.0), (1e-10, 1e-9), (0.0, 3e-9)])
def test_the_largest_size_whose_evaluation_takes_its_share(a, b, seconds):
    n = 20_000
    with pytest.warns(ConvergenceWarning, match="leaves time for max_iter="):
        model, m, asked = sized(3000, n, a, b, seconds)
    assert model.fit_report_.status == "max_seconds"
    assert max(rows for _, rows in asked) < n / 4 and max(size for size, _ in asked) < 600
    share = 0.15 * (10.0 - seconds[0])
    (exact,) = (r.real for r in np.roots([b, a * n, 0, -share]) if abs(r.imag) < 1e-9 and r > 0)
    assert m == pytest.approx(exact, abs=1)


def test_what_is_affordable_or_small_stays(seconds):
    model, m, asked = sized(3000, 20_000, 1e-13, 1e-13, seconds)
    assert m == 3000 and model.fit_report_.status == "converged" and asked
    for size, n, limit in ((500, 20_000, 10.0), (3000, 1000, 10.0), (3000, 20_000, None)):
        _, m, asked = sized(size, n, 1.0, 1.0, seconds, limit)
        assert m == size and not asked


def test_no_budget_leaves_less_than_a_smallest_size(seconds):
    with pytest.warns(ConvergenceWarning):
        assert sized(3000, 20_000, 1.0, 1.0, seconds)[1] == 256


POINTS = np.random.default_rng(1).standard_normal((400, 3))


def case(estimator, quick=False, **settings):
    marks = () if quick else pytest.mark.slow
    return pytest.param(estimator, settings, marks=marks)


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        case(RFFRegressor, n_components=400, quick=True),
        case(SGPRRegressor, n_inducing=400),
        case(SGPRRegressor, inducing=POINTS, quick=True),
        case(SVGPRegressor, inducing=POINTS),
        case(NNGPRegressor, n_inducing=400),
        case(NNGPRegressor, n_neighbors=100),
    ],
)
def test_every_path_of_many_functions_or_points_ends_by_the_budget(
    estimator, settings, seconds, thresholds, stand_in
):
    """One evaluation of the whole model would take 32 s.

    The density of 1,000 rows given 100 neighbours takes 10 s.
    """
    thresholds(_TIMED_SIZE=32, _LEAST_SIZE=24)

    def slowly(name, price):
        def slow(*args, **kwargs):
            seconds[0] += price(*args) / 1e8
            return function(*args, **kwargs)

        function = stand_in(name, slow)

    slowly("PriorFeatures.evaluate", lambda self, _, X: self.n_features**2 * len(X))
    slowly("TorchKernel.cross", lambda self, _, Z, X: len(Z) ** 2 * len(X))
    slowly("kernel_of_sets", lambda kernel, _, Z, *rest: (Z.shape[1] == 101) * len(Z) * 101**3)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 3))
    f = np.sin(X.sum(1))
    y = f + 0.3 * rng.standard_normal(len(X))
    settings = {"max_seconds": 5.0, "random_state": 0, **settings}
    model = estimator(RBF([1.5] * 3) + WhiteKernel(0.1), **settings)
    with pytest.warns(ConvergenceWarning, match="max_seconds") as said:
        model.fit(X, y)
    assert seconds[0] < 1.2 * 5.0
    assert ("leaves time for" in str(said[0].message)) == ("n_neighbors" not in settings)
    assert model.fit_report_.status == "max_seconds"
    assert model.score(X[:50], f[:50]) > 0.5
