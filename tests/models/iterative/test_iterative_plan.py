"""Plans as tables: rows, memory, device and settings give the choices, without a fit."""

from dataclasses import replace

import pytest
import torch

from skscalablegp import IterativeGPRegressor, RRCGRegressor
from skscalablegp.core import Machine
from skscalablegp.gradients import PathwiseGradient
from skscalablegp.solvers import BlockCG

LARGE, GPU = Machine(memory=16e9), Machine(torch.device("cuda"), 80e9)


def plan_of(n, machine=LARGE, d=8, model=IterativeGPRegressor, spectral=True, **params):
    return model(**params)._plan(n, d, machine, n_params=d + 2, spectral=spectral)


@pytest.mark.parametrize(
    "n, machine, dtype, solver, train_on, subsets, posterior",
    [
        (500, LARGE, "float64", "cholesky", "all", None, "exact"),
        (3_000, LARGE, "float64", "cholesky", "all", None, "exact"),
        (5_000, LARGE, "float32", "cholesky", "all", (2_000, 5_000, 1), "exact"),
        (12_000, LARGE, "float32", "cholesky", "subsets", (667, 6_000, 1), "exact"),
        (30_000, LARGE, "float32", "block_cg", "subsets", (2_000, 6_000, 1), "neighbors"),
        (100_000, LARGE, "float32", "block_cg", "subsets", (2_000, 6_000, 1), "neighbors"),
        (100_001, LARGE, "float32", "block_cg", "all", (2_000, 6_000, 10), "pathwise"),
        (
            12_000,
            Machine(memory=1e9),
            "float32",
            "block_cg",
            "subsets",
            (667, 4_564, 1),
            "neighbors",
        ),
        (30_000, GPU, "float32", "cholesky", "all", (2_000, 6_000, 1), "exact"),
        (45_000, GPU, "float32", "block_cg", "all", (2_000, 6_000, 1), "pathwise"),
    ],
)
def test_tables_and_machines_decide(n, machine, dtype, solver, train_on, subsets, posterior):
    plan = plan_of(n, machine)
    assert plan.dtype.value == dtype and f"{n:,} rows" in plan.dtype.reason
    assert (plan.solver.value, plan.train_on.value) == (solver, train_on)
    assert plan.posterior.value == posterior
    chosen = plan.stages.subsets
    assert subsets == (chosen and (chosen.size, chosen.largest, chosen.count))


@pytest.mark.parametrize(
    "limit",
    [
        {"max_iter": 25},
        {"training_max_epochs": 10},
        {"solver_tol": 1e-3},
        {"solver_max_epochs": 5},
        {"n_iter_no_change": None},
        {"max_seconds": 60},
    ],
    ids=str,
)
def test_limits_only_limit(limit):
    free, limited = plan_of(20_000), plan_of(20_000, **limit)
    assert limited.train_on.value == free.train_on.value == "subsets"
    assert limited.solver == free.solver and limited.posterior == free.posterior
    assert repr(limited.estimator) == repr(free.estimator)


@pytest.mark.parametrize(
    "named", [{"solver": "cg"}, {"gradient": "standard"}, {"optimizer": "adam"}], ids=str
)
def test_settings_of_all_rows_ask_for_all_rows(named):
    plan = plan_of(20_000, **named)
    assert plan.train_on.value == "all" and not plan.estimator.exact
    alone = plan_of(20_000, train_on="subsets", **named)
    assert alone.train_on.value == "subsets" and alone.stages.subsets.only
    assert "gradient" in alone.without_effect
    assert ("optimizer" in alone.without_effect) == ("optimizer" in named)


def test_all_rows_can_be_asked_for_without_a_method():
    plan = plan_of(20_000, train_on="all")
    assert plan.gradient.value == "standard" and plan.solver.value == "block_cg"
    assert plan.training.max_iter.value == 25 and plan.training.training_max_epochs.value == 600
    assert plan_of(20_000, train_on="all", max_iter=7).training.max_iter == (7, "as given")


def test_small_tables_have_no_subsets():
    assert "too few" in plan_of(500, train_on="subsets").without_effect["train_on"]
    with pytest.raises(ValueError, match="train_on='subsets' contradicts subset_size=None"):
        plan_of(500, train_on="subsets", subset_size=None)


@pytest.mark.parametrize(
    "params, spectral, gradient, n_probes, unused",
    [
        ({}, True, "exact", None, ("n_probes", "preconditioner")),
        ({"solver": "cg"}, True, "standard", 32, ("n_restarts_optimizer",)),
        ({"solver": "cg", "posterior": "pathwise"}, True, "pathwise", 64, ()),
        ({"solver": "sdd"}, False, "pathwise", 32, ()),
        ({"solver": "cg", "n_probes": 8}, True, "standard", 8, ()),
    ],
    ids=str,
)
def test_gradients_follow_from_solver_and_posterior(params, spectral, gradient, n_probes, unused):
    plan = plan_of(2_000, spectral=spectral, **params)
    assert plan.gradient.value == gradient
    assert (plan.n_probes and plan.n_probes.value) == n_probes
    assert set(unused) <= set(plan.without_effect)


def test_a_gradient_object_has_the_settings_of_solves():
    gradient = PathwiseGradient(BlockCG(), n_probes=5, solver_tol=0.1)
    plan = plan_of(2_000, gradient=gradient)
    assert plan.estimator is gradient and plan.solves.tol == 0.1 and plan.n_samples == 64
    assert "own solver_tol=0.1" in plan.without_effect["solver_tol"]


@pytest.mark.parametrize(
    "n, params, what",
    [
        (30_000, {"solver": "cholesky"}, "Exact training on 30000 rows"),
        (30_000, {"solver": "cg", "posterior": "exact"}, "An exact posterior for 30000 rows"),
        (20_000, {"subset_size": 19_999}, "The exact start on subset_size=19999 rows"),
    ],
)
def test_plans_name_the_memory_they_need(n, params, what):
    assert any(need.what.startswith(what) for need in plan_of(n, **params).needs)
    assert not any(need.what.startswith(what) for need in plan_of(n).needs)


def test_ill_conditioned_systems_are_factorised():
    plan = plan_of(12_000, train_on="all")
    assert plan.stages.precision == "factorised"
    direct = plan.factorised(torch.float64)
    assert direct.estimator.exact and direct.choices["solver"].value == "cholesky"
    assert "badly conditioned" in direct.dtype.reason and direct.dtype.value == "float64"
    assert plan_of(12_000, train_on="all", dtype="float32").stages.precision == "given"
    assert plan_of(12_000, solver="cg").stages.precision == "adapted"


def test_nothing_is_planned_where_nothing_is_trained():
    for params, n_params in (({"optimizer": None}, 5), ({}, 0)):
        plan = IterativeGPRegressor(**params)._plan(2_000, 3, LARGE, n_params=n_params)
        assert {"max_iter", "subset_size", "train_on"} <= set(plan.without_effect)
        assert ("optimizer" in plan.without_effect) == (n_params == 0)


@pytest.mark.parametrize(
    "n, params, law, rank, unused",
    [
        (2_000, {}, None, None, "probes"),
        (2_001, {}, "exponential", 50, "solver_tol"),
        (20_000, {}, "exponential", 200, "solver_tol"),
        (2_000, {"truncation": "geometric"}, "geometric", 50, "solver_tol"),
        (2_000, {"optimizer": "adam"}, "exponential", 50, "solver_tol"),
    ],
    ids=str,
)
def test_series_are_truncated_above_small_tables(n, params, law, rank, unused):
    plan = plan_of(n, model=RRCGRegressor, **params)
    assert plan.truncation.value == law and plan.estimator.exact == (law is None)
    assert (plan.preconditioner and plan.preconditioner.value.rank) == rank
    assert unused in plan.without_effect
    assert plan.training.optimizer.value == params.get("optimizer", "natural" if law else "bfgs")


CUDA = replace(GPU, compiler="triton")


@pytest.mark.parametrize(
    "machine, params, products, keep",
    [
        (CUDA, {}, None, True),  # H of 45,000 rows is stored
        (replace(CUDA, memory=8e9), {}, "compiled", False),
        (replace(GPU, memory=8e9), {}, "tiles", False),
        (Machine(memory=8e9, compiler="g++"), {}, "tiles", False),
        (CUDA, {"products": "keops"}, "keops", False),
        (CUDA, {"products": "tiles"}, None, True),
        (replace(CUDA, memory=8e9), {"products": "tiles"}, "tiles", False),
    ],
)
def test_products_are_compiled_where_a_compiler_is(machine, params, products, keep):
    plan = plan_of(45_000, machine, **params)
    assert (plan.products and plan.products.value) == products and plan.keep == keep
    assert ("products" in plan.without_effect) == (products is None)


def test_only_solvers_that_nobody_names_end_early():
    """Four steps of a solver in batches that reduce no error are the beginning of a solve."""
    assert plan_of(60_000).solves.ends_early
    assert not plan_of(60_000, solver="block_cg").solves.ends_early
    named = plan_of(60_000, gradient=PathwiseGradient("sdd"), posterior="neighbors")
    assert named.solver.value == "sdd" and not named.solves.ends_early
