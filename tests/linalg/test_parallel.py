"""Tasks side by side: order, failures, interrupts, modes of torch, forks, limits, neighbours."""

import contextvars
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import joblib
import named
import pytest
import torch

from skscalablegp.workers import map_in_order, n_workers, one_thread, run


def in_new_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(params=[1, 2, 3])
def workers(request, set_workers):
    return set_workers(request.param)


@pytest.fixture
def two(set_workers):
    return set_workers(2)


def nap(seconds):
    time.sleep(seconds)
    return seconds


# ---------------------------------------------------------------- what is promised


def test_results_come_in_the_order_of_the_tasks(workers):
    naps = [0.02, 0.0, 0.01, 0.0, 0.0, 0.015] * 4
    assert run([partial(nap, seconds) for seconds in naps]) == naps
    assert list(map_in_order(nap, iter(naps))) == naps
    assert run([]) == []


def test_as_many_work_at_once_as_there_are_workers_each_in_one_thread(workers):
    assert n_workers() == workers
    together = threading.Barrier(workers)

    def task(_):
        together.wait(30)
        torch.ones(100_000).exp().sum()
        # Tasks of a task run inside it.
        inner = run([torch.get_num_threads, n_workers, threading.get_ident])
        return *inner, torch.get_num_threads(), threading.get_ident()

    for *inner, threads, here in map_in_order(task, range(2 * workers)):
        assert threads == 1 and inner == [1, 1, here]
    assert torch.get_num_threads() == workers


def test_the_caller_takes_results_that_do_not_pile_up(two, thresholds):
    thresholds(_AHEAD=3)
    begun = []
    results = map_in_order(begun.append, iter(range(1000)))
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 1 + 2 * 3
    assert len(list(results)) == 999 and sorted(begun) == list(range(1000))


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_the_first_failure_in_order_is_raised_after_the_results_before_it(workers, bad):
    begun, taken = [], []

    def task(i):
        begun.append(i)
        if i == bad:
            time.sleep(0.02)
        if i >= bad:
            raise ValueError(f"task {i}")
        return i

    with pytest.raises(ValueError, match=f"^task {bad}$"):
        for i in map_in_order(task, range(1000)):
            taken.append(i)
    assert taken == list(range(bad))
    assert len(begun) < 100
    assert run([lambda: 1]) == [1]  # and the pool goes on


def test_no_task_begins_after_a_failure(two):
    begun, failed = [], threading.Event()

    def task(i):
        begun.append(i)
        if i == 1:
            failed.set()
            raise ValueError("task 1")
        failed.wait(10)
        time.sleep(0.1)  # long enough for the other worker to begin the next task

    with pytest.raises(ValueError, match="task 1"):
        list(map_in_order(task, range(100)))
    assert sorted(begun) == [0, 1]


def test_failing_items_are_raised_too(workers):
    def items():
        yield "0.001"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(map_in_order(nap, map(float, items())))


class Items:
    """Natural numbers without the fourth: asking for it fails, asking again goes on."""

    last = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.last += 1
        if self.last == 4:
            raise ValueError("no fourth")
        return self.last


def test_nothing_is_asked_for_after_a_failing_item(two):
    taken = []
    with pytest.raises(ValueError, match="no fourth"):
        taken.extend(map_in_order(float, Items()))
    for result in map_in_order(float, range(3)):
        taken.append(result)
    assert taken == [1, 2, 3, 0, 1, 2]


def test_a_worker_that_leaves_between_items_loses_no_results(two):
    """Both workers have left before the next item is there."""
    slow = (time.sleep(0.005) or i for i in range(50))
    assert list(map_in_order(float, slow)) == list(range(50))


def test_a_failure_keeps_nothing_alive(two):
    """Neither its items nor its error are part of a cycle, which only the collector would end."""

    def fail(item):
        raise ValueError(item)

    item = Held()
    seen = weakref.ref(item)
    gc.disable()
    try:
        with suppress(ValueError):
            list(map_in_order(fail, [item]))
        del item
        run([threading.Barrier(2).wait] * 2)  # The worker has left.
        assert seen() is None
    finally:
        gc.enable()


class Held:
    """Something that can be referred to weakly."""


def test_loops_over_results_may_hold_others(two):
    outer = map_in_order(float, range(50))
    assert [sum(map_in_order(float, range(3))) for _ in outer] == [3.0] * 50


def test_results_left_untaken_do_no_harm(two):
    for _ in map_in_order(nap, [0.001] * 50):
        break
    assert run([lambda: 2]) == [2]


def test_an_interrupt_ends_the_work(two):
    """A task after the fourth waits until the caller has seen the signal, however late that is."""
    begun, ended, served = [], [], threading.Event()

    def task(i):
        begun.append(i)
        if i == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if i >= 3:
            served.wait(60)
            time.sleep(0.1)
        ended.append(i)

    def interrupted(*args):
        served.set()
        raise KeyboardInterrupt

    # A shell that starts the tests in the background has them ignore interrupts.
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run([partial(task, i) for i in range(200)])
    finally:
        signal.signal(signal.SIGINT, before)
    seen = len(begun)
    assert seen < 12 and sorted(ended) == sorted(begun)
    time.sleep(0.25)
    assert len(begun) == seen  # nothing runs on


# ---------------------------------------------------------------- settings of the caller


def test_tasks_see_the_callers_modes_of_autograd(workers):
    def modes(_):
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with context():
            here = modes(None)
            assert set(map_in_order(modes, range(4))) == {here}
    x = torch.ones(3, requires_grad=True)
    sum(map_in_order(lambda i: (x * i).sum(), range(4))).backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))


def test_tasks_see_the_callers_context(workers):
    variable = contextvars.ContextVar("variable")
    variable.set("set")
    assert run([variable.get] * 3) == ["set"] * 3


@pytest.mark.parametrize("count", [2, 3])
def test_threads_that_start_later_have_as_many_as_before(set_workers, count):
    set_workers(4)  # which is what new threads have

    def caller():
        # Another thread's own number is neither lost nor spread.
        named.module("_set_threads_here")._set_threads_here(count)
        run([partial(nap, 0.001)] * 4)
        with one_thread():
            seen = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
        return *seen, torch.get_num_threads()

    assert in_new_thread(caller) == (1, 4, count)
    assert torch.get_num_threads() == 4 == in_new_thread(torch.get_num_threads)


def test_one_thread_is_put_back_after_a_failure(two):
    with pytest.raises(ValueError), one_thread():
        assert torch.get_num_threads() == 1 and n_workers() == 2
        assert threading.get_ident() not in run([threading.get_ident])  # tasks go to workers
        raise ValueError
    assert torch.get_num_threads() == 2
    assert n_workers() == 2


# ---------------------------------------------------------------- many callers, processes


def test_many_threads_call_at_once_and_share_the_workers(two):
    working, most, lock = [0], [0], threading.Lock()
    # Both workers have started: a thread whose first use of torch coincides may get their number.
    run([threading.Barrier(2).wait] * 2)

    def task(i):
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        time.sleep(0.001)
        with lock:
            working[0] -= 1
        return i

    found = joblib.Parallel(8, backend="threading")(
        joblib.delayed(lambda: run([partial(task, i) for i in range(20)]))() for _ in range(8)
    )
    assert found == [list(range(20))] * 8
    assert most[0] <= 2


def square_in_child(_=None):
    torch.set_num_threads(2)
    return run([partial(pow, i, 2) for i in range(5)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_have_pools_of_their_own(two):
    expected = square_in_child()
    with multiprocessing.get_context("fork").Pool(2) as children:
        assert children.map_async(square_in_child, range(2)).get(120) == [expected] * 2


@pytest.mark.night
def test_joblibs_processes_keep_to_their_share_of_the_cores():
    def child():
        from skscalablegp.workers import n_workers, run

        return n_workers(), run([int, float])

    with joblib.parallel_config("loky", inner_max_num_threads=1):
        assert joblib.Parallel(2)(joblib.delayed(child)() for _ in range(2)) == [(1, [0, 0])] * 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_workers_keep_to_affinity_and_end_with_the_interpreter():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "import torch; torch.set_num_threads(4);"
        "from skscalablegp.workers import n_workers, run;"
        "print(n_workers(), run([int] * 4))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "1 [0, 0, 0, 0]" and not done.stderr


@pytest.mark.parametrize(("cores", "threads"), [(8, 3), (3, 8)])
def test_the_smaller_of_the_machines_and_the_users_limits_holds(set_workers, cores, threads):
    set_workers(cores)  # joblib reads quotas, affinity and LOKY_MAX_CPU_COUNT
    torch.set_num_threads(threads)
    assert n_workers() == 3
