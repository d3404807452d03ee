"""Refits that fail anywhere leave the old model or the new one, never a mixture.

The fast profile injects one fault and one signal into every estimator; ``make faults`` many.
"""

import os
import pickle
import random
import signal
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from contracts.fit_contract import answers, data
from contracts.test_fit_contract import FIT_ROWS
from numpy.testing import assert_array_equal

pytestmark = pytest.mark.slow

# Of each kind; the fast profile has one in all.
FAULTS = int(os.environ.get("FAULTS", "0"))
ERRORS = {
    "exception": lambda: RuntimeError("injected"),
    "memory": lambda: MemoryError("Unable to allocate"),
    "allocator": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "solve": lambda: torch.linalg.LinAlgError("injected"),
    "interrupt": KeyboardInterrupt,
}
# Where the interpreter enters these, nothing can hear that it failed: the fit is over, or has not
# begun.
_NOWHERE = ("__enter__", "__exit__", "__getattr__", "__del__")


class Faults:
    """Raises an error at the k-th call of a function of the package; counts the calls."""

    def __init__(self, at=None, error=None):
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, frame, event, arg):
        name = frame.f_code.co_filename
        if f"{os.sep}skscalablegp{os.sep}" in name and frame.f_code.co_name not in _NOWHERE:
            self.calls += 1
            if self.calls == self.at:
                raise self.error()
        return None

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)
        return False


def refit(row, model, X, y):
    """The error of a refit, if it raised one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y)
        except BaseException as error:
            return error
    return None


def fitted(row):
    model = row.new()
    X, y, X_new = data(row)
    refit(row, model, X, y)
    return model, X_new, answers(row, model, X_new), dict(vars(model))


def same(model, state):
    """Whether an estimator has the very attributes that it had."""
    now = vars(model)
    return now.keys() == state.keys() and all(now[name] is state[name] for name in now)


def check_whole(row, model, X_new, before, state):
    """As it was after an error; a model of its own otherwise, fitted attributes and posterior."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = pickle.loads(pickle.dumps(model))
        said = answers(row, model, X_new)
        for a, b in zip(said, answers(row, again, X_new), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    if not same(model, state):
        # The refit went to its end: its report and its model are there.
        assert vars(model)["fit_report_"] is not state["fit_report_"]
        assert all(np.isfinite(values).all() for values in said)
        return
    for old, new in zip(before, said, strict=True):
        assert_array_equal(old, new)


@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_a_fault_anywhere_in_a_refit(row):
    model, X_new, before, state = fitted(row)
    X, y, _ = data(row, seed=1)
    with Faults() as count:
        assert refit(row, row.new(), X, y) is None
    places, kinds = random.Random(row.name), sorted(ERRORS)
    for kind in kinds * FAULTS or [places.choice(kinds)]:
        with Faults(places.randint(1, count.calls), ERRORS[kind]) as faults:
            error = refit(row, model, X, y)
        check_whole(row, model, X_new, before, state)
        if not same(model, state):
            model, X_new, before, state = fitted(row)
        assert error is None or faults.calls >= faults.at


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_a_signal_at_any_time(row):
    model, X_new, before, state = fitted(row)
    X, y, _ = data(row, seed=1)
    started = time.perf_counter()
    refit(row, row.new(), X, y)
    seconds = time.perf_counter() - started
    times = random.Random(row.name)
    kept = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(max(FAULTS, 1)):
            signal.setitimer(signal.ITIMER_REAL, max(1e-4, times.uniform(0, seconds)))
            try:
                refit(row, model, X, y)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:  # after the fit
                pass
            check_whole(row, model, X_new, before, state)
            if not same(model, state):
                model, X_new, before, state = fitted(row)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)
