"""Every estimator on a simulated GPU: what it says is what it says on the CPU, to the last bit.

The simulated device computes on the CPU, so that differences come from the package: from another
algorithm, from other tiles, or from another dtype. Operands on two devices are errors there, as
they are on a GPU; see ``tests/simulated.py``.
"""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from contracts.cases import marked, once_a_base
from contracts.estimator_contract import table
from contracts.test_contract import ROWS
from numpy.testing import assert_allclose
from simulated import simulated
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from sklearn.utils.validation import has_fit_parameter

from skscalablegp import IterativeGPRegressor, NNGPRegressor, load, save

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PAGE = Path(__file__).parents[2] / "doc" / "how_to" / "gpu.rst"
# One row of each class, with the settings that reach its method.
METHODS = [row for row in ROWS if row.stands_for_its_class]


@once_a_base
def case(row): ...


def method(row, device):
    """The row's estimator on a device, by its method also on a small table."""
    model = row.new(device=device)
    if "small_table" in model.get_params(deep=False):
        model.set_params(small_table="method")
    return model


def runs_where():
    """What the page on GPUs says of the fit and of the predictions of each class."""
    if not PAGE.exists():  # not a checkout of the repository
        return {}
    section = PAGE.read_text(encoding="utf-8").partition("What runs where")[2]
    rows = section.partition("On grids,")[0].split("   * - ")[2:]
    said = {}
    for row in rows:
        names, *where = row.split("\n     - ")
        said |= dict.fromkeys(re.findall(r"``(\w+)``", names), tuple(where))
    return said


def test_the_page_has_every_class():
    said = runs_where()
    assert not said or set(said) == {type(row.estimator).__name__ for row in ROWS}


@pytest.mark.parametrize("row", marked(case, METHODS))
def test_the_method_on_a_gpu(row):
    X, y, X_new = table()
    launches = []
    with simulated() as gpu:
        model = method(row, "cuda").fit(X, row.target(y))
        launches.append(sum(gpu.launches.values()))
        gpu.forget()
        answers = row.everything(model, X_new)
        launches.append(sum(gpu.launches.values()))
    assert all(a.dtype.kind != "f" or np.isfinite(a).all() for a in answers)
    assert model.device_ == "cuda:0"
    where_of = runs_where().get(type(model).__name__, ("", ""))
    for where, count in zip(where_of, launches, strict=True):
        assert count or not where.startswith("device")
    assert any(launches)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row in METHODS else pytest.mark.night) for row in ROWS],
    ids=lambda row: row.name,
)
def test_says_on_a_gpu_what_it_says_on_a_cpu(row, tmp_path):
    """And where the GPU is gone, from a pickle and from a file, and where it is back."""
    X, y, X_new = table()
    y = row.target(y)
    with simulated():
        there = method(row, "cuda").fit(X, y)
        found = row.everything(there, X_new)
        kept, file = pickle.dumps(there), tmp_path / "model.skgp"
        save(there, file)
    here = method(row, "cpu").fit(X, y)
    for ours, theirs in zip(found, row.everything(here, X_new), strict=True):
        if ours.dtype.kind in "iOU":
            assert (ours == theirs).all()
        else:
            assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * np.abs(theirs).max())
    away = pickle.loads(kept)
    for model in (away, load(file)):
        for ours, theirs in zip(row.everything(model, X_new), found, strict=True):
            if ours.dtype.kind == "f":
                assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * np.abs(theirs).max())
    with simulated():
        back = pickle.loads(pickle.dumps(away))
        for ours, theirs in zip(row.everything(back, X_new), found, strict=True):
            if ours.dtype.kind == "f":
                assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * np.abs(theirs).max())


def test_neighbourhoods_are_factorised_at_once():
    """The number of operations, and of waits, does not depend on the number of rows."""
    X, y, _ = table(n=60)
    kernel = Matern(2.0) + WhiteKernel(0.01)
    counts = []
    with simulated() as gpu:
        settings = dict(optimizer=None, n_neighbors=8, small_table="method", random_state=0)
        model = NNGPRegressor(kernel, device="cuda", **settings).fit(X, y)
        model.predict(X[:1])
        for rows in (20, 200):
            new = np.random.default_rng(0).uniform(-2, 2, (rows, X.shape[1]))
            gpu.forget()
            model.predict(new, return_std=True)
            counts.append((gpu.launches, sum(gpu.waits.values())))
    assert counts[0] == counts[1]
    assert counts[0][0]["linalg_cholesky_ex"] == 1


def near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        if one.dtype.kind == "f":
            assert_allclose(one, other, rtol=1e-4, atol=1e-6 * np.abs(other).max())
        else:
            assert (one == other).all()


def answers(model, X):
    """Without draws, which depend on a root of the covariance that is not unique."""
    if is_classifier(model):
        return [model.predict_proba(X)]
    return model.predict(X, return_std=True)


@pytest.mark.night
@pytest.mark.parametrize(
    "row", [row for row in METHODS if has_fit_parameter(row.estimator, "sample_weight")]
)
def test_weights_on_a_gpu(row):
    X, y, X_new = table()
    y, weights = row.target(y), np.arange(len(X)) % 3
    found = {}
    for device in ("cuda", "cpu"):
        with simulated() as gpu:
            model = method(row, device).fit(X, y, sample_weight=weights)
            found[device] = answers(model, X_new)
            assert bool(gpu.launches) == (device == "cuda")
    near(found["cuda"], found["cpu"])


@pytest.mark.night
@pytest.mark.parametrize(
    "row", [row for row in METHODS if "checkpoint" in row.estimator.get_params()]
)
def test_a_killed_fit_goes_on_on_a_gpu(row, tmp_path):
    """A checkpoint holds tensors of the device, and the fit goes on there."""
    X, y, X_new = table()
    y = row.target(y)

    class Fault(Exception):
        pass

    def fault(step):
        raise Fault

    with simulated():
        whole = method(row, "cuda").fit(X, y)
        expected = row.everything(whole, X_new)
        model = method(row, "cuda").set_params(checkpoint=tmp_path, callbacks=fault)
        with pytest.raises(Fault):
            model.fit(X, y)
        again = method(row, "cuda").set_params(checkpoint=tmp_path).fit(X, y)
        assert again.fit_report_.resumed > 0 and not [*tmp_path.iterdir()]
        near(row.everything(again, X_new), expected)


@pytest.mark.slow
def test_a_function_without_noise_on_a_gpu():
    """Training below the bound of the noise, and the comparison of its predictions."""
    X, found = np.random.default_rng(0).random((120, 2)), {}
    y = np.sin(4 * X[:, 0]) + X[:, 1] ** 2
    for device in ("cuda", "cpu"):
        with simulated() as gpu:
            model = IterativeGPRegressor(device=device, random_state=0).fit(X, y)
            found[device] = model.predict(X + 0.01, return_std=True)
            assert bool(gpu.launches) == (device == "cuda")
    assert model.kernel_.k2.noise_level < 1e-5
    near(found["cuda"], found["cpu"])
