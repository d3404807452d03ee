"""Setup of all tests: checked shapes, repeatable examples, the folder of data sets."""

import gc
import os
import random
from functools import partial
from pathlib import Path

import checked_shapes
import joblib
import numpy as np
import pytest
import remembered
import timed

# What is imported and collected stays: every collection of garbage meanwhile would go through all
# of it for nothing.
gc.disable()

# Their assertions are to show values, as those of tests do.
pytest.register_assert_rewrite("contracts")

# Shapes and dtypes written in signatures are checked here and only here.
checked_shapes.install("skscalablegp")

import hypothesis  # noqa: E402
import named  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser):
    parser.addoption("--seconds", help="file for a line of processor seconds: see tests/timed.py")
    parser.addoption("--slowest", type=int, default=60, help="how many tests that line names")


def pytest_configure(config):
    if config.getoption("seconds"):
        config.pluginmanager.register(timed.Timed(config))


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items):
    """Mark the tests of the night; with ORDER set, shuffle: no test needs another before it.

    Files are shuffled, and the tests in each: what all tests of a file share is made once.
    """
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
        seldom = [f"[{case}]" for mark in item.iter_markers("seldom") for case in mark.args]
        if item.name.endswith(tuple(seldom)):
            item.add_marker("night")
        if item.get_closest_marker("night"):
            item.add_marker("slow")
    if seed := os.environ.get("ORDER"):
        draw, shuffled = random.Random(int(seed)), list(files.values())
        for each in (shuffled, *shuffled):
            draw.shuffle(each)
        items[:] = [item for each in shuffled for item in each]


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item):
    checked_shapes.begin_test()


@pytest.fixture(autouse=True)
def perturbed_input(request):
    """With PERTURBED set, every number that an estimator reads is off by about 1e-12 of itself.

    What a test promises should not depend on the last digits of its table. Equal numbers stay
    equal, so that repeated rows, refits and predictions of single rows are what they were. Tests
    that compare tables which would be perturbed in different ways, or whose own regressors look for
    rows, are marked exact_input and see tables as they are.
    """
    size = float(os.environ.get("PERTURBED", "0"))
    if not size or request.node.get_closest_marker("exact_input"):
        yield
        return

    def perturbed(values):
        if getattr(values, "dtype", None) not in (np.float64, np.float32):
            return values
        near = (values * (1 + size * np.sin(1e6 * values))).astype(values.dtype)
        # Whole numbers may be codes of categories, which have no last digits.
        return np.where(values == np.round(values), values, near)

    def validate(estimator, X="no_validation", y="no_validation", **rules):
        checked = exact(estimator, X, y, **rules)
        if not isinstance(checked, tuple):
            return perturbed(checked) if rules.get("y_numeric") or isinstance(y, str) else checked
        X, y = checked
        return perturbed(X), perturbed(y) if rules.get("y_numeric") else y

    # A context of its own: what a test takes back leaves its tables perturbed.
    with pytest.MonkeyPatch.context() as patch:
        exact = named.stand_in(patch, "validate_data", validate)
        # Arrays that need no conversion would not get here.
        named.stand_in(patch, "_is_valid", lambda *args, **rules: False)
        yield


@pytest.fixture(scope="session")
def data_folder():
    """Folder with the layout ``uci/NAME/data.csv.gz``; skips where none is at hand."""
    named = os.environ.get("SKSCALABLEGP_DATA")
    if not named:
        pytest.skip("SKSCALABLEGP_DATA names no folder of data sets")
    folder = Path(named)
    if not (folder / "uci").is_dir():
        pytest.skip(f"SKSCALABLEGP_DATA={named} has no uci folder")
    return folder


@pytest.fixture
def set_workers(monkeypatch):
    """A function that sets the number of workers, regardless of the machine."""
    pool = named.module("_forget")
    before, counted = torch.get_num_threads(), joblib.cpu_count

    def set_to(count, cores=None):
        monkeypatch.setattr(joblib, "cpu_count", cores or (lambda: count))
        # A thread of the last pool that is about to begin would put back the last number.
        pool._pool(pool.n_workers()).shutdown()
        pool._forget()
        torch.set_num_threads(count)
        return count

    yield set_to
    set_to(before, counted)


@pytest.fixture
def thresholds(monkeypatch):
    """A function that sets numbers at which models change what they do: see `named.thresholds`."""
    return partial(named.thresholds, monkeypatch)


@pytest.fixture
def stand_in(monkeypatch):
    """A function that puts something in the place of what it names: see `named.stand_in`."""
    return partial(named.stand_in, monkeypatch)


@pytest.fixture
def own_kernels(stand_in):
    """Kernels that a test registers are forgotten afterwards."""
    stand_in("_BUILDERS", dict(named.module("_BUILDERS")._BUILDERS))


@pytest.fixture
def gpu():
    """The CUDA device; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.fixture
def given_start(stand_in):
    """Training begins at the given hyperparameters, so that its first stage has steps to make."""
    from skscalablegp.core import Start

    stand_in(
        "choose_start", lambda problem, theta, *rest, **settings: Start("the given values", theta)
    )


@pytest.fixture
def remembered_starts(request, stand_in):
    """Each search for a start is made once a process, for tests that ask something else.

    Those marked fresh_starts make each anew, and so does the night.
    """
    if checked_shapes.CHECKED_CALLS == float("inf"):
        return
    if request.node.get_closest_marker("fresh_starts"):
        return
    ways = remembered.remembered_search, remembered.remembered_signals
    for name, way in zip(("choose_start", "simple_signals"), ways, strict=True):
        stand_in(name, way(getattr(*named.places(name)[0])))
