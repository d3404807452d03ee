"""Fits and predictions that several ranks share: real processes, compared with one process."""

import os
import signal
import subprocess
import sys
import time
import warnings
from hashlib import md5
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from inside import shareable
from oracles import normal
from ranks.launched import environment, free_port, launch
from shown_code import code_blocks
from sklearn.base import BaseEstimator, clone
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, RFFRegressor, RRCGRegressor, distribute, load
from skscalablegp._calls import Call
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator, RankOperator, kernel_operator
from skscalablegp.workers import RankError, call_parts, leading
from skscalablegp.workers._group import Group

KERNEL = ConstantKernel(1.3) * Matern([0.6, 1.1, 2.0], nu=1.5) + WhiteKernel(0.2)


def table(n=1501, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "doc" / "how_to" / "several_machines.rst"


def codes(answers):
    return [code for code, _ in answers]


class Asked(BaseEstimator):
    """An estimator with one method, which all ranks run together."""

    @shareable
    def ask(self, question, *args):
        return question(*args)


# ---------------------------------------------------------------- products


def operators(X, keep, dtype=torch.float64):
    compiled = compile_kernel(KERNEL, X.shape[1])
    noise = torch.linspace(0.1, 0.3, len(X), dtype=dtype)
    arguments = compiled, compiled.theta0, torch.as_tensor(X, dtype=dtype), noise
    alone = KernelOperator(*arguments)
    return kernel_operator(*arguments, keep=keep), alone


def compare_products(keep):
    """The largest errors of a shared operator, what each rank stores, and bytes of a product."""
    X, ranks = table()[0], leading()
    H, alone = operators(X, keep)
    assert isinstance(H, RankOperator)
    V, W = normal(len(X), 7), normal(len(X), 7, seed=1)
    idx, new = torch.tensor([5, 1400, 17]), normal(900, 3, seed=2)
    H.matmul(V[:, :1])
    before = ranks.bytes_sent
    pairs = {"product": (H.matmul(V), alone.to_dense() @ V)}
    sent = ranks.bytes_sent - before
    pairs |= {
        "again": (H.matmul(W), alone.to_dense() @ W),
        "gradient": (H.bilinear_grad(V, W), alone.bilinear_grad(V, W)),
        "whole gradient": (H.bilinear_grad(V @ V.T), alone.bilinear_grad(V @ V.T)),
        "rows": (H.rows(idx), alone.to_dense()[idx]),
        "block": (H.block(idx), alone.to_dense()[idx][:, idx]),
        "dense": (H.to_dense(), alone.to_dense()),
        "cross": (H.cross(new).matmul(V), alone.cross(new).to_dense() @ V),
        "few": (H.cross(new[:3]).matmul(V), alone.cross(new[:3]).to_dense() @ V),
    }
    errors = {k: float((a - b).abs().max() / b.abs().max()) for k, (a, b) in pairs.items()}
    stored = H.workers.call(attrgetter("stored_entries"))
    single = operators(X, keep, torch.float32)[0]
    exact = single.matmul(V)  # In the precision of V, which exceeds that of the operator.
    errors["precise"] = float((exact - pairs["product"][1]).abs().max() / exact.abs().max())
    return errors, [entries / len(X) ** 2 for entries in stored], sent, H.epochs


def ask_for_products(keep):
    with distribute() as ranks:
        errors, stored, sent, epochs = Asked().ask(compare_products, keep)
        return errors, stored, sent, epochs, ranks.bytes_sent


@pytest.mark.parametrize(
    "size, keep",
    [(3, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, False), (2, True)])],
)
def test_products_of_ranks_are_those_of_one_process(size, keep):
    answers = launch(size, ask_for_products, keep)
    assert codes(answers) == [0] * size, answers
    errors, stored, sent, epochs, _ = answers[0][1]
    assert all(answer[:4] == answers[0][1][:4] for _, answer in answers)
    # The operator in single precision has its own hyperparameters' rounding, but not its products'.
    assert errors.pop("precise") < 1e-6
    assert max(errors.values()) < 1e-12, errors
    # Each rank keeps its own half tiles, and at two ranks far less than 60 % of H.
    assert sum(stored) == pytest.approx(keep * 0.5, rel=0.2)
    assert max(stored) <= 0.6 / size
    # The columns of the product, and what is to be done.
    n, s = 1501, 7
    assert 0 < sent - (size - 1) * 8 * n * s < (size - 1) * 300
    assert epochs == pytest.approx(6 + 3 / n + (3 / n) ** 2)


# ---------------------------------------------------------------- fits


ESTIMATORS = {
    "iterative": IterativeGPRegressor(
        solver="cg", gradient="pathwise", posterior="pathwise", solver_tol=1e-9, dtype="float64"
    ),
    "truncated": RRCGRegressor(small_table="method", posterior="solve", solver_tol=1e-9),
}


def fitted(name, in_context=True, **parameters):
    """Fit and predict; returns numbers to compare, a hash of the fitted attributes and bytes."""
    X, y = table()
    model = clone(ESTIMATORS[name]).set_params(random_state=0, n_probes=8, **parameters)

    def answer():
        model.fit(X, y)
        mean, std = model.predict(X[:800], return_std=True)
        numbers = np.concatenate([model.kernel_.theta, mean, std])
        attributes = {k: v for k, v in sorted(vars(model).items()) if isinstance(v, np.ndarray)}
        data = b"".join(np.ascontiguousarray(a).tobytes() for a in attributes.values())
        data += numbers.tobytes() + str((*attributes, model.fit_report_, model.history_)).encode()
        return numbers, md5(data).hexdigest(), len(attributes)

    warnings.simplefilter("ignore")
    if not in_context:
        return answer()
    with distribute() as ranks:
        return *answer(), ranks.bytes_sent


def assert_same_fits(size, name, **parameters):
    answers = launch(size, fitted_with, name, parameters)
    assert codes(answers) == [0] * size, answers
    alone = fitted(name, in_context=False, **parameters)[0]
    found = [answer for _, answer in answers]
    np.testing.assert_allclose(found[0][0], alone, rtol=0, atol=1e-6)
    assert len({hashed for _, hashed, _, _ in found}) == 1 and found[0][2] >= 3
    assert all(sent > 10 * 8 * 1501 for *_, sent in found)  # The products were shared.


def fitted_with(name, parameters):
    return fitted(name, **parameters)


def test_fit_of_two_ranks():
    """The final solve and the predictions, without training."""
    assert_same_fits(2, "iterative", optimizer=None)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_training_of_ranks_is_that_of_one_process(size, name):
    assert_same_fits(size, name, max_iter=2, subset_size=None)


# ---------------------------------------------------------------- ranks that differ, fail or end


def differ(kind):
    rank = int(os.environ["RANK"])
    X, y = table(n=50)
    model = RFFRegressor(n_components=8, max_iter=2, random_state=0)
    with distribute() as ranks:
        if kind == "data" and rank == 1:
            X[7, 1] += 1e-9
        if kind == "parameter" and rank == 1:
            model.set_params(n_components=9)
        if kind == "absent" and rank == 1:
            return "left"
        model.fit(X, y)
        return ranks.rank


@pytest.mark.parametrize(
    "kind, text",
    [
        ("data", "X is an array of 50 x 3 float64 .* at rank 0 and .* at rank 1"),
        ("parameter", "parameter n_components is 8 at rank 0 and 9 at rank 1"),
        ("absent", "rank 1 does not take part"),
    ],
)
def test_ranks_that_differ_say_so(kind, text):
    answers = launch(2, differ, kind)
    expected = [3, 0] if kind == "absent" else [3, 3]
    assert codes(answers) == expected, answers
    for code, answer in answers:
        if code:
            with pytest.raises(AssertionError, match=text):
                raise AssertionError(answer)


def die(ranks, V):
    """Rank 2 ends in its second product."""
    if ranks.rank == 2:
        os._exit(9)
    return ranks.total(V)


def product_of_the_dead():
    H = operators(table()[0], False)[0]
    H.matmul(normal(1501, 2))
    leading().together(die, normal(1501, 2))


def die_at_rank_0(ranks, V):
    if ranks.rank == 0:
        os._exit(9)
    return ranks.total(V)


def task_without_rank_0():
    leading().together(die_at_rank_0, normal(1501, 2))


def stop(ranks, V):
    """Rank 1 is silent, although its connections stand."""
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return ranks.total(V)


def task_of_the_silent():
    leading().together(stop, normal(1501, 2))


def ask_in_seconds(question, timeout):
    begun = time.monotonic()
    try:
        with distribute(timeout=timeout):
            Asked().ask(question)
    except RankError as error:
        return str(error), time.monotonic() - begun


def fail(ranks, V):
    if ranks.rank == 1:
        raise MemoryError("no room for a tile")
    return ranks.total(V)


def task_that_fails():
    leading().together(fail, normal(1501, 2))


def ask(question):
    with distribute(timeout=20):
        Asked().ask(question)


def do_nothing(ranks):
    pass


def task_after_a_failure():
    ranks = leading()
    ranks.life.fail("rank 1 has failed")
    ranks.together(do_nothing)


def test_no_task_is_given_after_a_failure():
    ((code, text),) = launch(1, ask, task_after_a_failure)
    assert code == 3 and text == "RankError: rank 1 has failed"


def test_hashes_are_those_of_values_wherever_they_are():
    X, y = table(n=20)

    def parts(X):
        return call_parts(Call(RFFRegressor.fit, RFFRegressor(), (X, y), {}), set())

    assert parts(np.asfortranarray(X)) == parts(np.repeat(X, 2, axis=1)[:, ::2]) == parts(X)
    assert parts(X + 1e-12)["X"] != parts(X)["X"]


class Ending:
    """A message that has ended, or failed."""

    def __init__(self, failure=None, root=0):
        self.failure = failure

    def get_future(self):
        future = torch.futures.Future()
        if self.failure:
            future.set_exception(RuntimeError(self.failure))
        else:
            future.set_result(None)
        return future


def test_a_message_that_fails_is_blamed_on_a_rank():
    group = Group.__new__(Group)
    group.life = SimpleNamespace(blame=lambda error: RankError(f"blamed: {error}"))
    for _ in range(2):
        group._do(Ending)
        with pytest.raises(RankError, match="blamed: closed by peer"):
            group._do(Ending, "closed by peer")


def message_of_the_late():
    with distribute(timeout=20) as ranks:
        time.sleep(ranks.rank)
        return [found.tolist() for found in ranks.gather(torch.full((2,), float(ranks.rank)))]


def test_a_message_may_come_late():
    """Waits look every half second whether all ranks live, which must not end a message."""
    answers = launch(2, message_of_the_late, seconds=60)
    assert answers == [(0, [[0.0, 0.0], [1.0, 1.0]]), (0, [])]


def call_of_one():
    with distribute(patience=1.0) as ranks:
        if ranks.rank == 1:
            time.sleep(6)
        else:
            begun = time.monotonic()
            try:
                RFFRegressor(optimizer=None).fit(*table(30))
            except RankError as error:
                return str(error), time.monotonic() - begun


@pytest.mark.slow
def test_patience_with_a_rank_that_makes_no_call():
    (_, (text, seconds)), _ = launch(2, call_of_one, seconds=60)
    assert "rank 1 did not make this call within 1 s" in text and seconds < 5


def message_of_the_dead():
    with distribute(timeout=5) as ranks:
        if ranks.rank == 1:
            os._exit(9)
        ranks.gather(torch.zeros(3))


@pytest.mark.slow
def test_who_waits_for_a_message_of_the_dead_names_it():
    (code, text), (dead, _) = launch(2, message_of_the_dead, seconds=60)
    assert (code, dead) == (3, 9) and "rank 1" in text


@pytest.mark.slow
def test_rank_that_dies_in_a_product_is_named_by_all_others():
    answers = launch(3, ask, product_of_the_dead, seconds=60)
    assert codes(answers) == [3, 3, 9], answers
    assert all("rank 2 has ended" in text for _, text in answers[:2]), answers


def end(ranks):
    if ranks.rank == 1:
        os._exit(9)
    ranks.life.gather("nothing", "")


def fit_of_the_dead(folder):
    """Rank 1 ends between two steps of training on all rows."""

    def kill(step):
        if step.stage == "full" and step.iteration == 2:
            leading().together(end)

    X, y = table()
    model = clone(ESTIMATORS["iterative"]).set_params(**DYING, checkpoint=folder, callbacks=kill)
    try:
        with distribute(timeout=20):
            model.fit(X, y)
    except RankError as error:
        return str(error), hasattr(model, "kernel_")


DYING = {"random_state": 0, "n_probes": 8, "max_iter": 4, "subset_size": None}


@pytest.mark.slow
def test_fit_whose_rank_dies_goes_on_from_its_checkpoint_in_one_process(tmp_path):
    answers = launch(3, fit_of_the_dead, tmp_path)
    assert codes(answers) == [0, 9, 0], answers
    for _, (text, fitted) in answers[::2]:
        assert "rank 1" in text and not fitted
    assert len(list(tmp_path.iterdir())) == 1
    X, y = table()
    steps, models = [], []
    for settings in ({"checkpoint": tmp_path}, {}):
        model = clone(ESTIMATORS["iterative"]).set_params(**DYING, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models.append(model.fit(X, y))
        steps.append(model.n_iter_)
    assert "resumed" in models[0].fit_report_ and steps[0] == steps[1]
    np.testing.assert_allclose(models[0].kernel_.theta, models[1].kernel_.theta, atol=1e-6)


@pytest.mark.slow
def test_all_others_notice_the_end_of_rank_0():
    answers = launch(3, ask_in_seconds, task_without_rank_0, 20, seconds=60)
    assert codes(answers) == [9, 0, 0], answers
    assert all(text.startswith("rank 0") and spent < 30 for _, (text, spent) in answers[1:])


@pytest.mark.slow
def test_rank_that_is_silent_is_named_after_the_timeout():
    answers = launch(3, ask_in_seconds, task_of_the_silent, 5, seconds=60, stopped=[1])
    assert codes(answers) == [0, -signal.SIGKILL, 0], answers
    for _, (text, spent) in answers[::2]:
        assert text == "no sign of life of rank 1 for 5 s" and spent < 30


def test_rank_that_fails_is_named_by_all_others():
    answers = launch(3, ask, task_that_fails, seconds=60)
    assert codes(answers) == [3, 3, 3], answers
    text = "rank 1 failed with MemoryError: no room for a tile"
    assert all(text in answer for _, answer in answers), answers


def wrong_table():
    X, y = table(n=50)
    y[3] = np.nan
    with distribute():
        model = RFFRegressor(n_components=8)
        try:
            model.fit(X, y)
        except ValueError as error:
            said = str(error)
        y[3] = 0
        model.fit(X, y)
        return said, model.n_iter_, model.predict(X[:3]).tolist()


def test_errors_of_rank_0_are_those_of_all_and_later_calls_work():
    """An estimator without shared products is fitted by rank 0, too, for all ranks."""
    answers = launch(2, wrong_table)
    assert codes(answers) == [0, 0], answers
    assert answers[0] == answers[1]
    assert "NaN" in answers[0][1][0]


# ---------------------------------------------------------------- launchers


def program(name):
    """A program of the page, which has its name in the first line."""
    blocks = [code for _, code, need in code_blocks(PAGE) if need == "processes"]
    return next(code for code in blocks if code.lstrip().startswith(f"# {name}"))


@pytest.mark.night
@pytest.mark.skipif(not PAGE.exists(), reason="not a checkout of the repository")
@pytest.mark.parametrize("name, said", [("on_dask.py", "2 ranks"), ("search.py", "n_neighbors")])
def test_other_programs_of_the_documentation_run(tmp_path, name, said):
    (tmp_path / name).write_text(program(name))
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not done.returncode and said in done.stdout, done.stdout + done.stderr


@pytest.mark.seldom("own_rows.py-: 10000 rows, R2 0.99-2")
@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="not a checkout of the repository")
@pytest.mark.parametrize(
    "name, said, times",
    [("fit.py", "2 ranks: ", 1), ("own_rows.py", ": 10000 rows, R2 0.99", 2)],
)
def test_programs_of_the_documentation_run_under_torchrun(tmp_path, name, said, times):
    (tmp_path / name).write_text(program(name))
    variables = {k: v for k, v in environment(0, 1, 0).items() if k == "GLOO_SOCKET_IFNAME"}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *launcher, name],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not done.returncode, done.stdout + done.stderr
    assert done.stdout.count(said) == times, done.stdout
    if name == "fit.py":
        assert load(tmp_path / "model.safetensors").predict(np.zeros((2, 3))).shape == (2,)


# ---------------------------------------------------------------- one process


def test_group_alone_shares_nothing_and_context_needs_one():
    with pytest.raises(RuntimeError, match="torchrun"), distribute():
        pass
    with pytest.raises(ValueError, match="patience"), distribute(patience=0):
        pass
    with pytest.raises(ValueError, match="timeout"), distribute(timeout=-1):
        pass
    with pytest.raises(ValueError, match="rows must be"), distribute(rows="some"):
        pass
    assert leading() is None
