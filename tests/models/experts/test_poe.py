"""PoERegressor against scikit-learn's exact regression on the parts and on the whole table."""

import pickle
import re
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec

import joblib
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import PoERegressor
from skscalablegp.core import Machine, fitted_process
from skscalablegp.core.training import Budget
from skscalablegp.models.experts import COMBINATIONS
from skscalablegp.models.experts._parts import global_first, kmeans_parts, random_parts
from skscalablegp.models.experts._plan import plan_experts
from skscalablegp.solvers import End
from skscalablegp.training import Adam

KERNEL = ConstantKernel(1.5) * Matern([0.8, 1.2], nu=1.5) + WhiteKernel(0.05)


def table(n=120, seed=0, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, d))
    y = np.sin(2 * X[:, 0]) + 0.3 * X.sum(1) + 0.2 * rng.standard_normal(n)
    return X, y, rng.uniform(-3, 3, (15, d))


def poe(**params):
    params = {"kernel": KERNEL, "random_state": 0, "expert_size": 30} | params
    return PoERegressor(**params)


# ------------------------------------------------------------------ equivalence limits


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_one_expert_is_the_exact_process(combination):
    X, y, X_new = table()
    Y = np.column_stack([y, np.cos(y)])
    exact = GaussianProcessRegressor(KERNEL, optimizer=None, normalize_y=True, alpha=1e-3)
    model = poe(
        combination=combination, expert_size=120, optimizer=None, normalize_y=True, alpha=1e-3
    ).fit(X, Y)
    exact.fit(X, Y)
    for mine, theirs in zip(
        model.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(mine, theirs, rtol=1e-8, atol=1e-9)
    assert_allclose(
        model.predict(X_new, return_cov=True)[1],
        exact.predict(X_new, return_cov=True)[1],
        atol=1e-8,
    )
    assert model.log_marginal_likelihood_value_ == pytest.approx(
        exact.log_marginal_likelihood_value_, rel=1e-9
    )
    assert_allclose(
        model.sample_y(X_new, 3, random_state=1),
        exact.sample_y(X_new, 3, random_state=1),
        atol=1e-6,
    )


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_one_expert_trains_as_the_exact_process(combination):
    X, y, X_new = table(80)
    exact = GaussianProcessRegressor(KERNEL).fit(X, y)
    model = poe(combination=combination, expert_size=80).fit(X, y)
    assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=2e-2)
    assert_allclose(model.predict(X_new), exact.predict(X_new), atol=1e-3)


def test_grbcm_of_two_experts_is_exact():
    """The second expert has the whole table, and the first cancels."""
    X, y, X_new = table()
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    model = poe(combination="grbcm", expert_size=60, optimizer=None).fit(X, y)
    assert len(model.experts_) == 2
    for mine, theirs in zip(
        model.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(mine, theirs, rtol=1e-8)


@pytest.mark.slow
def test_grbcm_is_consistent_where_bcm_is_not():
    """Squared errors in units of the claimed variance, for more and more experts.

    The function is drawn from the model, so that the exact posterior's ratio is 1 on average.
    """
    kernel = ConstantKernel(1.0) * Matern(0.5, nu=1.5)
    noisy = kernel + WhiteKernel(0.25)
    ratios = {"bcm": [], "rbcm": [], "grbcm": []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 10, (2200, 1))
        f = np.linalg.cholesky(kernel(X) + 1e-9 * np.eye(2200)) @ rng.standard_normal(2200)
        y, X_new, f_new = f + 0.5 * rng.standard_normal(2200), X[2000:], f[2000:]
        for n, size in ((250, 50), (2000, 100)):
            for combination in ratios:
                model = poe(
                    kernel=noisy,
                    combination=combination,
                    expert_size=size,
                    partition="random",
                    optimizer=None,
                ).fit(X[:n], y[:n])
                std = model.predict_std(X_new, include_noise=False)
                error = (model.predict(X_new) - f_new) / std
                ratios[combination].append((n, np.mean(error**2)))
    few, many = (
        {c: np.mean([r for rows, r in found if rows == n]) for c, found in ratios.items()}
        for n in (250, 2000)
    )
    assert 0.6 < few["grbcm"] < 1.4 and 0.6 < many["grbcm"] < 1.4
    for overconfident in ("bcm", "rbcm"):
        assert many[overconfident] > 2.5
        assert many[overconfident] > 1.5 * few[overconfident]


# ------------------------------------------------------------------ likelihood and training


@pytest.mark.parametrize("combination", ["gpoe", "grbcm"])
def test_likelihood_is_the_sum_over_disjoint_parts(combination):
    X, y, _ = table()
    model = poe(combination=combination, optimizer=None).fit(X, y)
    parts = model.experts_
    if combination == "grbcm":
        parts = [parts[0], *(np.setdiff1d(part, parts[0]) for part in parts[1:])]
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(X)))
    theta = KERNEL.theta + 0.1
    values, grads = zip(
        *(
            GaussianProcessRegressor(KERNEL, optimizer=None)
            .fit(X[part], y[part])
            .log_marginal_likelihood(theta, eval_gradient=True)
            for part in parts
        ),
        strict=True,
    )
    value, grad = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(sum(values), rel=1e-9)
    assert_allclose(grad, np.sum(grads, axis=0), rtol=1e-6, atol=1e-6)
    assert model.log_marginal_likelihood(KERNEL.theta) == pytest.approx(
        model.log_marginal_likelihood_value_
    )


def test_training_ends_at_a_maximum_of_the_sum():
    X, y, _ = table(240)
    model = poe(expert_size=60).fit(X, y)
    assert model.fit_report_.status == "converged"
    best = model.log_marginal_likelihood_value_
    for step in 0.3 * np.vstack([np.eye(4), -np.eye(4)]):
        assert model.log_marginal_likelihood(model.kernel_.theta + step) < best


def test_an_expert_that_diverged_is_named(stand_in):
    X, y, X_new = table(120)
    trained = []

    def train_expert(*args):
        trained.append(plain(*args))
        reason = End.DIVERGED if len(trained) == 2 else End.CONVERGED
        return replace(trained[-1], stop_reason=reason)

    plain = stand_in("train_expert", train_expert)
    with pytest.warns(ConvergenceWarning, match="diverged"):
        model = poe(share_hyperparameters=False, expert_size=40).fit(X, y)
    assert len(trained) == 3
    assert model.fit_report_.status == "diverged"
    assert model.fit_report_.failures == ("expert 2: training diverged",)
    assert "expert 2: training diverged" in str(model.fit_report_)
    assert np.isfinite(model.predict(X_new)).all()


def test_separate_hyperparameters_fit_their_parts_better():
    X, y, X_new = table(160)
    y = np.where(X[:, 0] > 0, np.sin(6 * X[:, 1]), 0.2 * X[:, 1])
    shared, separate = (
        poe(expert_size=40, partition="kmeans", share_hyperparameters=share).fit(X, y)
        for share in (True, False)
    )
    assert separate.log_marginal_likelihood_value_ > shared.log_marginal_likelihood_value_ + 10
    assert len(separate.kernels_) == 4 and len({k.theta.tobytes() for k in separate.kernels_}) == 4
    assert np.isfinite(separate.predict(X_new, return_std=True)).all()
    for part, kernel in zip(separate.experts_, separate.kernels_, strict=True):
        own = GaussianProcessRegressor(kernel, optimizer=None).fit(X[part], y[part])
        value = own.log_marginal_likelihood_value_
        assert value >= own.log_marginal_likelihood(shared.kernel_.theta) - 1e-3


@pytest.mark.parametrize("share", [True, False])
def test_time_budget(share):
    X, y, X_new = table()
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model = poe(share_hyperparameters=share, max_seconds=1e-9).fit(X, y)
    assert np.isfinite(model.log_marginal_likelihood_value_)
    assert np.isfinite(model.predict(X_new)).all()


# ------------------------------------------------------------------ parts


@pytest.mark.parametrize("n, size", [(1, 5), (5, 5), (6, 5), (1000, 64), (97, 1)])
def test_parts_cover_the_table_evenly(n, size):
    X = np.random.default_rng(0).standard_normal((n, 3))
    for cut in (
        lambda r: random_parts(X, size, r),
        lambda r: kmeans_parts(X, size, r),
        lambda r: global_first(X, size, random_parts, r),
        lambda r: global_first(X, size, kmeans_parts, r),
    ):
        parts = cut(np.random.RandomState(0))
        assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
        sizes = [len(part) for part in parts]
        assert max(sizes) <= size and min(sizes) > 0


def test_kmeans_parts_are_neighbourhoods():
    X = np.random.default_rng(0).uniform(size=(1024, 2)) * [1, 1000]
    spread = {
        "kmeans": kmeans_parts(X, 64, np.random.RandomState(0)),
        "random": random_parts(X, 64, np.random.RandomState(0)),
    }
    within = {
        name: np.mean([X[part].var(axis=0) / X.var(axis=0) for part in parts])
        for name, parts in spread.items()
    }
    assert within["kmeans"] < 0.15 < 0.9 < within["random"]


def test_equal_columns_can_be_cut():
    X = np.zeros((50, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = kmeans_parts(X, 20, np.random.RandomState(0))
    assert [len(part) for part in parts] == [17, 16, 17]


# ------------------------------------------------------------------ joint predictions


def combined_by_hand(rule, x, parts, X, y):
    """Mean and latent variance at a row from exact processes of some parts."""
    models = [GaussianProcessRegressor(KERNEL, optimizer=None).fit(X[p], y[p]) for p in parts]
    found = [model.predict(x[None], return_std=True) for model in models]
    means = torch.tensor(np.array([mean for mean, _ in found]))[:, :, None]
    latent = torch.tensor(np.array([std**2 for _, std in found])) - 0.05
    combined = COMBINATIONS[rule](means, latent, torch.full_like(latent, 1.5))
    return float(combined.mean), float(combined.variance)


@pytest.mark.parametrize("rule", ["gpoe", "rbcm", "grbcm"])
def test_a_row_is_predicted_by_its_nearest_experts(rule):
    X, y, X_new = table()
    model = poe(combination=rule, expert_size=15, n_experts=3, optimizer=None).fit(X, y)
    scaled, scaled_new = X / [0.8, 1.2], X_new / [0.8, 1.2]
    own = list(model.experts_)
    if rule == "grbcm":
        own[1:] = [part[15:] for part in own[1:]]
    for x, near, mean, std in zip(
        X_new, scaled_new, *model.predict(X_new, return_std=True), strict=True
    ):
        apart = np.array([np.linalg.norm(scaled[part] - near, axis=1).min() for part in own])
        if rule == "grbcm":
            apart[0] = 0  # the global expert
        parts = [model.experts_[k] for k in np.sort(np.argsort(apart)[:3])]
        expected = combined_by_hand(rule, x, parts, X, y)
        assert (mean, std**2 - 0.05) == pytest.approx(expected, rel=1e-5)


def test_rows_left_out_are_predicted_by_their_nearest_experts():
    X, y, _ = table()
    model = poe(expert_size=15, n_experts=2, optimizer=None, normalize_y=False).fit(X, y)
    left = fitted_process(model).left_out(X, y, None, np.arange(len(X)))
    rows, mean, std = left.rows, left.mean, left.std
    scaled = X / [0.8, 1.2]
    for i in (0, 40, 77):
        apart = [np.linalg.norm(scaled[part] - scaled[i], axis=1).min() for part in model.experts_]
        parts = [np.setdiff1d(model.experts_[k], i) for k in np.sort(np.argsort(apart)[:2])]
        expected = combined_by_hand("gpoe", X[i], parts, X, y)
        assert (mean[i], std[i] ** 2 - 0.05) == pytest.approx(expected, rel=1e-4)
    # Most experts have none of two rows.
    two = fitted_process(model).left_out(X, y, None, np.array([3, 5])).mean
    np.testing.assert_allclose(two, mean[np.searchsorted(rows, [3, 5])], rtol=1e-9)


def test_auto_predicts_with_a_few_experts_where_the_paper_does_not_say_all():
    X, y, X_new = table()
    settings = dict(expert_size=15, optimizer=None)
    few, every = poe(**settings).fit(X, y), poe(**settings, n_experts=100).fit(X, y)
    assert (few.n_experts_, every.n_experts_, len(every.experts_)) == (4, 8, 8)
    assert few.fit_report_.choices["n_experts"].value == 4
    for other in (dict(combination="rbcm"), dict(partition="random")):
        assert poe(**settings, **other).fit(X, y).n_experts_ == 8
    cov = few.predict(X_new, return_cov=True)[1]
    assert_allclose(np.sqrt(np.diag(cov)), few.predict(X_new, return_std=True)[1], rtol=1e-6)
    assert np.linalg.eigvalsh(cov).min() > 0


@pytest.mark.parametrize("combination", ["poe", "gpoe"])
@pytest.mark.parametrize("share", [True, False])
def test_joint_covariance(combination, share):
    X, y, X_new = table()
    model = poe(combination=combination, share_hyperparameters=share).fit(X, y)
    covariance = model.predict(X_new, return_cov=True)[1]
    assert_allclose(np.sqrt(np.diag(covariance)), model.predict(X_new, return_std=True)[1])
    assert np.linalg.eigvalsh(covariance).min() > 0
    # What is asked for beside them does not change the covariance of two rows.
    assert_allclose(model.predict(X_new[:4], return_cov=True)[1], covariance[:4, :4], atol=1e-12)
    draws = model.sample_y(X_new[:3], 4000, random_state=0)
    error = np.cov(draws) - covariance[:3, :3]
    assert np.abs(error).max() < 5 * covariance[:3, :3].max() / np.sqrt(4000 / 2)


@pytest.mark.parametrize("combination", ["bcm", "rbcm", "grbcm"])
def test_rules_without_a_joint_distribution_say_so(combination):
    X, y, X_new = table()
    model = poe(combination=combination, optimizer=None).fit(X, y)
    for ask in (lambda: model.predict(X_new, return_cov=True), lambda: model.sample_y(X_new)):
        with pytest.raises(ValueError, match=f"{combination}.* no joint .*gpoe"):
            ask()
    with pytest.raises(ValueError, match="divides by a common prior"):
        model.set_params(share_hyperparameters=False).fit(X, y)


def test_mean_and_std_agree_with_either_alone():
    X, y, X_new = table()
    Y = np.column_stack([y, 10 + 100 * y])
    model = poe(combination="grbcm", normalize_y=True, optimizer=None).fit(X, Y)
    mean, std = model.predict(X_new, return_std=True)
    assert_array_equal(mean, model.predict(X_new))
    assert_array_equal(std, model.predict_std(X_new))
    assert_allclose(std[:, 1], 100 * std[:, 0])


# ------------------------------------------------------------------ joblib


def described(model, X_new):
    return [model.kernel_.theta, *model.predict(X_new, return_std=True)]


@pytest.mark.seldom("True-loky", "False-loky")
@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [pytest.param(True, marks=pytest.mark.slow), False])
def test_backends_agree(share, backend):
    X, y, X_new = table()
    params = {"share_hyperparameters": share, "max_iter": 4}
    alone = described(poe(**params).fit(X, y), X_new)
    with joblib.parallel_config(backend=backend, n_jobs=2):
        together = described(poe(**params).fit(X, y), X_new)
    for a, b in zip(alone, together, strict=True):
        assert_allclose(b, a, rtol=1e-8, atol=1e-10)


DASK = """
import joblib, numpy as np
from distributed import Client, LocalCluster
from skscalablegp import PoERegressor

if __name__ == "__main__":
    X = np.random.default_rng(0).uniform(-3, 3, (120, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    settings = dict(expert_size=30, max_iter=4, random_state=0)
    alone = PoERegressor(**settings).fit(X, y).predict(X[:5], return_std=True)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster, Client(cluster) as client:
        with joblib.parallel_config(backend="dask"):
            model = PoERegressor(**settings).fit(X, y)
        did = client.run(lambda dask_worker: dask_worker.state.executed_count)
    print(len(did), "workers", min(did.values()) > 0)
    np.testing.assert_allclose(model.predict(X[:5], return_std=True), alone, rtol=1e-8)
    print("equal")
"""


@pytest.mark.night
@pytest.mark.skipif(find_spec("distributed") is None, reason="distributed is not installed")
def test_two_dask_workers(tmp_path):
    script = tmp_path / "on_dask.py"
    script.write_text(DASK)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split("\n")[:2] == ["2 workers True", "equal"], done.stderr


# ------------------------------------------------------------------ state and limits


def test_factors_are_rebuilt_from_the_fitted_table():
    X, y, X_new = table()
    model = poe(share_hyperparameters=False).fit(X, y)
    state = pickle.dumps(model)
    # One expert's factor is not in it, let alone all.
    assert len(state) < 8 * 4 * 30**2
    # What predicts is what was fitted, not what parameters say by now.
    model.set_params(combination="poe", expert_size=7)
    again = pickle.loads(pickle.dumps(model))
    for a, b in zip(described(model, X_new), described(again, X_new), strict=True):
        assert_array_equal(a, b)


def test_noise_variance_goes_with_its_row():
    X, y, _ = table()
    noise = np.where(np.arange(120) % 2 == 0, 1e-4, 4.0)
    y = np.where(noise > 1, y + 5, y)
    model = poe(optimizer=None).fit(X, y, noise_variance=noise)
    quiet = noise < 1
    assert np.abs(model.predict(X) - y)[quiet].mean() < 0.5


@pytest.mark.parametrize(
    ("rule", "n", "memory", "rows"),
    [
        ("gpoe", 1_000_000, None, 1024),
        ("gpoe", 1_000_000, 1e12, 1024),
        ("gpoe", 1_000_000, 7.51e9, 500),
        ("gpoe", 9_000, 6e7, 561),  # with 8 bytes an entry
        ("grbcm", 1_000_000, 3.007e10, 500),
        ("gpoe", 1_000_000, 1e9, 200),
    ],
)
def test_auto_takes_experts_whose_factors_fit_into_memory(rule, n, memory, rows):
    machine = Machine(memory=memory)
    found = plan_experts(PoERegressor(combination=rule), n, machine).expert_size
    assert found.value == pytest.approx(rows, abs=1)
    assert ("would not fit into memory" in found.reason) == (rows < 1024)
    given = plan_experts(PoERegressor(expert_size=700), n, machine).expert_size
    assert given.value == 700 and "memory" not in given.reason


def test_a_fit_with_little_memory_takes_smaller_experts():
    X, y, _ = table(3000)
    settings = dict(optimizer=None, random_state=0, n_experts=4)
    gp = PoERegressor(memory_budget=1.2e7, **settings).fit(X, y)
    assert 200 < max(map(len, gp.experts_)) <= 350
    assert "would not fit into memory" in str(gp.fit_report_)


def test_memory_is_checked_before_any_work():
    X, y, _ = table()
    with pytest.raises(MemoryError, match=re.escape("4 experts of up to 30 rows")):
        poe(memory_budget=1000).fit(X, y)


@pytest.mark.parametrize("at", ["start", "an expert"])
def test_an_interrupt_ends_the_training_of_separate_experts(at, stand_in):
    X, y, X_new = table()
    seen = []

    def press(step):
        if at == "start" and step.iteration == 2:
            raise KeyboardInterrupt

    def trained(table, theta, settings, budget, *rest):
        seen.append(table)
        expert = train_expert(table, theta, settings, budget, *rest)
        if len(seen) < 2:
            return expert
        return replace(expert, stop_reason=budget.end(End.INTERRUPTED))

    train_expert = stand_in("train_expert", trained)
    model = poe(share_hyperparameters=False, combination="gpoe", callbacks=press)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, y)
    assert model.fit_report_.status == "interrupted"
    assert len(seen) == (0 if at == "start" else 2)
    parts = zip(model.kernels_, model.experts_, strict=True)
    exact = [GaussianProcessRegressor(k, optimizer=None).fit(X[p], y[p]) for k, p in parts]
    assert model.log_marginal_likelihood_value_ == pytest.approx(
        sum(expert.log_marginal_likelihood_value_ for expert in exact), rel=1e-6
    )


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_callbacks_hear_of_separate_experts(n_jobs):
    X, y, _ = table()
    heard = []
    settings = {"share_hyperparameters": False, "combination": "gpoe", "n_jobs": n_jobs}
    with joblib.parallel_config("threading"):
        model = poe(callbacks=heard.append, **settings).fit(X, y)
    stages = ["full", *(f"expert {k + 1}" for k in range(4))]
    assert set(model.history_["stage"]) == set(stages)
    assert [step.stage for step in heard] == model.history_["stage"]
    assert (np.diff(model.history_["seconds"]) >= 0).all()
    assert "experts" in model.fit_report_.seconds


def test_an_interrupt_before_an_experts_first_step_keeps_the_common_start(stand_in):
    X, y, _ = table()

    def pressed(*task):
        raise KeyboardInterrupt

    stand_in("train_expert", pressed)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = poe(share_hyperparameters=False, combination="gpoe").fit(X, y)
    assert len({kernel.theta.tobytes() for kernel in model.kernels_}) == 1


def test_experts_in_workers_do_not_share_their_time(stand_in):
    """The first one spends its share; the share of the others begins when a worker takes them."""
    X, y, _ = table()
    seen = []

    def trained(table, theta, settings, budget, *rest):
        seen.append((budget.limit, budget.ended, budget.seconds < 1.0))
        if len(seen) == 1:
            budget.end(End.MAX_SECONDS)
            time.sleep(1.1)
        return train_expert(table, theta, settings, Budget(), *rest)

    train_expert = stand_in("train_expert", trained)
    settings = {"share_hyperparameters": False, "combination": "gpoe", "n_jobs": 2}
    with joblib.parallel_config("threading"):
        poe(max_seconds=1000.0, **settings).fit(X, y)
    assert len({limit for limit, *_ in seen}) == 1 and 400 < seen[0][0] <= 500
    assert {(ended, fresh) for _, ended, fresh in seen} == {(None, True)}


def test_an_expert_that_spends_its_share_leaves_the_others_theirs(stand_in):
    X, y, _ = table()
    shares = []

    def slow(table, theta, settings, budget, *rest):
        shares.append(budget.limit)
        reason = End.MAX_SECONDS if len(shares) == 1 else End.CONVERGED
        return replace(train_expert(table, theta, settings, Budget(), *rest), stop_reason=reason)

    train_expert = stand_in("train_expert", slow)
    with pytest.warns(ConvergenceWarning, match="raise max_seconds"):
        poe(share_hyperparameters=False, combination="gpoe", max_seconds=1000.0).fit(X, y)
    np.testing.assert_allclose(shares, [250, 333, 500, 1000], rtol=0.05)


@pytest.mark.parametrize("when", ["training", "likelihood"])
def test_a_product_returns_after_an_interrupt_without_its_likelihood(when, monkeypatch):
    """Experts that share rows do not give the likelihood; it would take seconds on many rows."""
    X, y, X_new = table()
    calls = []

    def likelihood(self, *args):
        calls.append(when)
        raise KeyboardInterrupt

    def stop(step):
        if when == "training":
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(PoERegressor, "_likelihood", likelihood)
    model = poe(combination="grbcm", expert_size=15, callbacks=stop)
    with pytest.warns(ConvergenceWarning) if when == "training" else nullcontext():
        model.fit(X, y)
    assert calls == ([] if when == "training" else ["likelihood"])
    assert np.isnan(model.log_marginal_likelihood_value_)
    assert model.fit_report_.status == ("interrupted" if when == "training" else "callback")
    assert np.isfinite(model.predict(X_new, return_std=True)).all()
    assert np.isfinite(model.log_marginal_likelihood(model.kernel_.theta))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_report_says_what_training_did():
    X, y, _ = table()
    report = poe().fit(X, y).fit_report_
    assert {"optimizer", "max_iter", "dtype", "n_experts", "normalize_y", "priors"} == set(
        report.choices
    )
    assert report.choices["max_iter"].value == 25 and report.choices["optimizer"].value == "bfgs"
    assert {"learning_rate", "n_iter_no_change"} == set(report.ignored)
    adam = poe(optimizer=Adam(0.2), max_iter=3).fit(X, y).fit_report_
    assert "n_iter_no_change" not in adam.ignored and "learning_rate" in adam.ignored
    still = poe(optimizer=None).fit(X, y).fit_report_
    assert "dtype" in still.choices and not {"optimizer", "max_iter", "priors"} & set(still.choices)
    assert {"max_iter", "learning_rate", "n_iter_no_change"} <= set(still.ignored)
    single = poe(expert_size=500).fit(X, y).fit_report_
    assert single.choices["max_iter"].value == 500
    assert {"combination", "partition", "share_hyperparameters"} <= set(single.ignored)


def test_an_unknown_optimizer_is_named_before_work_starts(stand_in):
    stand_in("experts.KMeans", None)
    with pytest.raises(ValueError, match="Unknown optimizer 'sgd': use one of 'auto', 'adam'"):
        poe(optimizer="sgd", partition="kmeans").fit(*table()[:2])


# ---------------------------------------------------------------- variances of large tables


@pytest.mark.parametrize(("noise", "single"), [(0.05, True), (1e-7, False)])
def test_single_precision_is_for_variances_that_it_can_hold(thresholds, noise, single):
    thresholds(MANY_ROWS=100)
    X, y, _ = table(400, d=3)
    kernel = Matern(1.5, nu=2.5) + WhiteKernel(noise, "fixed")
    found = {}
    for dtype in ("auto", "float64"):
        model = poe(kernel=kernel, optimizer=None, expert_size=150, dtype=dtype)
        model.fit(X, y)
        inverses = [expert.inverse is not None for expert in model._posterior().experts]
        assert inverses == [single and dtype == "auto"] * 3
        found[dtype] = model.predict_std(np.vstack([X, X + 3]), include_noise=False)
    np.testing.assert_allclose(found["auto"], found["float64"], rtol=1e-3)
    assert np.array_equal(found["auto"], found["float64"]) != single


def test_rows_that_are_known_better_than_the_checked_ones_are_predicted_in_double(thresholds):
    thresholds(MANY_ROWS=100)
    X, y, _ = table(400, d=2)
    noise, few = np.full(400, 0.05), [101, 203, 307]
    noise[few] = 1e-9
    found = []
    for dtype in ("auto", "float64"):
        model = poe(kernel=RBF([0.6, 0.6]), optimizer=None, partition="random", dtype=dtype)
        model.set_params(expert_size=100).fit(X, y, noise_variance=noise)
        found.append(model.predict_std(X[few], noise_variance=0.0))
        in_single = [expert.inverse is not None for expert in model._posterior().experts]
        assert sum(in_single) >= 2 if dtype == "auto" else not any(in_single)
    np.testing.assert_allclose(*found, rtol=1e-3)


def test_experts_on_any_number_of_cores_are_the_same(set_workers):
    X, y, _ = table(200)
    found = []
    for count in (1, 2, 3):
        set_workers(count)
        model = poe(expert_size=50, optimizer=None).fit(X, y)
        found.append(model.predict(X, return_std=True))
        found[-1] += model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))
