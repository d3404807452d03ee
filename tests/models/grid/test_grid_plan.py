"""The plan of a fit on a grid, without fits."""

import pytest

from skscalablegp import KISSGPRegressor
from skscalablegp.models.grid._plan import plan_grid, plan_method


@pytest.mark.parametrize(
    ("n", "d", "varying", "params", "structure", "sizes"),
    [
        (10_000, 1, None, {}, "product", [400]),
        (100, 1, None, {}, "product", [105]),
        (10_000, 2, None, {}, "product", [100, 100]),
        (100, 2, None, {}, "product", [20, 20]),
        (10_000, 3, None, {}, "product", [36] * 3),
        (10_000, 4, None, {}, "product", [8] * 4),
        (10_000, 5, None, {}, "additive", [100] * 5),
        (10, 5, None, {}, "additive", [15] * 5),
        # Many columns share the points.
        (10_000, 40, None, {}, "additive", [100] * 40),
        (10_000, 100, None, {}, "additive", [40] * 100),
        (10_000, 400, None, {}, "additive", [20] * 400),
        (2, 2, None, {}, "product", [8, 8]),
        # Constant columns have no axis.
        (10_000, 5, [1, 4], {}, "product", [100, 100]),
        (10_000, 3, [0, 2], {"grid_size": [9, 10, 11]}, "product", [9, 11]),
        (10_000, 2, None, {"grid_size": 30}, "product", [30, 30]),
        (10_000, 2, None, {"structure": "additive"}, "additive", [100, 100]),
        # One column is the same either way, and has the points of a product grid.
        (10_000, 1, None, {"structure": "additive"}, "additive", [400]),
    ],
)
def test_grids(n, d, varying, params, structure, sizes):
    plan = plan_grid(KISSGPRegressor(**params), n, d, varying)
    assert plan.structure.value == structure and plan.grid_size.value == sizes


@pytest.mark.parametrize(
    ("n", "d", "wanted", "structure", "sizes"),
    [
        # On a product grid, other columns make room as far as they can.
        (2500, 2, {1: 320}, "product", [20, 320]),
        (10_000, 2, {0: 900}, "product", [500, 20]),
        (10_000, 3, {1: 900}, "product", [20, 116, 20]),
        (10_000, 4, {1: 900}, "product", [8] * 4),
        (100, 2, {1: 90}, "product", [20, 20]),
        (2500, 2, {1: 60}, "product", [80, 80]),
        (10_000, 1, {0: 900}, "product", [900]),
        (10_000, 5, {2: 900}, "additive", [100, 100, 900, 100, 100]),
    ],
)
def test_columns_that_ask_for_more_points(n, d, wanted, structure, sizes):
    plan = plan_grid(KISSGPRegressor(), n, d, None, wanted)
    assert plan.structure.value == structure and plan.grid_size.value == sizes


def test_memory_of_product_grids():
    (need,) = plan_grid(KISSGPRegressor(structure="product"), 10_000, 6).needs
    assert need.bytes == 30 * 8**6 * 7**6
    assert "8 x 8 x 8 x 8 x 8 x 8 = 262,144 points" in need.what
    assert not plan_grid(KISSGPRegressor(), 10_000, 6).needs


@pytest.mark.parametrize(
    ("params", "solver", "optimizer", "ignored"),
    [
        ({}, "cholesky", "bfgs", {"activation", "max_epochs", "learning_rate"}),
        ({"solver": "cg"}, "cg", "adam", {"activation", "max_epochs", "n_restarts_optimizer"}),
        ({"device": "cuda"}, "cholesky", "bfgs", {"learning_rate"}),
        ({"feature_extractor": lambda d: None}, "cholesky", "bfgs", {"activation"}),
        ({"optimizer": None}, "cholesky", None, {"max_iter", "learning_rate"}),
    ],
)
def test_choices_without_a_grid(params, solver, optimizer, ignored):
    plan = plan_method(KISSGPRegressor(**params), 5_000)
    assert plan.solver.value == solver and plan.priors.value is None
    assert ignored <= set(plan.without_effect)
    assert ("max_epochs" in plan.without_effect) == ("feature_extractor" not in params)
    assert optimizer is None or plan.choices["optimizer"].value == optimizer
    with pytest.raises(ValueError, match="solver='ap' is unknown on a grid"):
        plan_method(KISSGPRegressor(**{**params, "solver": "ap"}), 5_000)
