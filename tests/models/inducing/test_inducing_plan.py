"""Plans of models with inducing points, as tables and without fits."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import SGPRRegressor, SVGPRegressor
from skscalablegp.core.likelihoods import resolve_likelihood
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.inducing import SparseModel
from skscalablegp.models.inducing._plan import plan_batches, plan_collapsed


def batches(n, **params):
    estimator = SVGPRegressor(**params)
    likelihood = resolve_likelihood(estimator.likelihood, 1)
    model = SparseModel(compile_kernel(RBF() + WhiteKernel(), 2), likelihood, 1)
    return plan_batches(estimator, model, n, 2, 512)


@pytest.mark.parametrize(
    "n, m, steps, rate, dtype, whole",
    [
        (150, 150, 30, 0.3, "float64", True),
        (900, 900, 80, 0.3, "float64", True),
        (2_000, 2_000, 80, 0.1, "float64", True),
        (2_001, 512, 80, 0.1, "float64", False),
        (20_000, 512, 156, 0.1, "float64", False),
        (200_000, 512, 400, 0.1, "float64", False),
    ],
)
def test_automatic_choices_of_batches(n, m, steps, rate, dtype, whole):
    plan = batches(n)
    assert {name: choice.value for name, choice in plan.choices.items()} == {
        "n_inducing": m,
        "max_iter": steps,
        "variational_learning_rate": rate,
        "dtype": dtype,
    }
    assert plan.whole == whole and plan.enough
    assert plan.n_inducing.value == m and plan.max_iter.value == steps
    assert plan.batch_size == min(n, 1024)
    assert ("optimize_inducing" in plan.ignored) == whole


def test_what_a_user_sets_keeps_the_bound():
    for params in ({"variational_optimizer": "adam"}, {"likelihood": "student_t"},
                   {"inducing": np.zeros((7, 2))}, {"optimizer": None}):  # fmt: skip
        plan = batches(900, **params)
        assert not plan.whole and plan.n_inducing.value == (7 if "inducing" in params else 512)
    assert not batches(900, max_iter=5).enough


@pytest.mark.parametrize(
    "n, params, m, steps, exact",
    [
        (400, {}, 400, 100, False),
        (512, {}, 512, 100, False),
        (513, {}, None, 100, True),
        (2_000, {"max_iter": 7}, None, 7, True),
        (2_000, {"small_table": "method"}, 512, 100, False),
        (600, {"optimize_inducing": True}, 512, 100, False),
        (600, {"optimizer": "bfgs"}, 512, 100, False),
        (2_001, {}, 512, 100, False),
        (600, {"n_inducing": 30, "max_iter": 7}, 30, 7, False),
    ],
)
def test_choices_of_the_collapsed_bound(n, params, m, steps, exact):
    plan = plan_collapsed(SGPRRegressor(**params), n, 2)
    assert (plan.n_inducing.value, plan.max_iter.value) == (m, steps)
    assert bool(plan.exact_instead) == exact and plan.dtype.value == "float64"
    assert {"learning_rate", "n_iter_no_change"} <= set(plan.ignored)


def test_only_adam_has_a_learning_rate():
    plan = plan_collapsed(SGPRRegressor(optimizer="adam"), 100, 2)
    assert plan.learning_rate.value == 0.1 and "learning_rate" not in plan.ignored
    assert plan_collapsed(SGPRRegressor(optimizer=None), 100, 2).new_optimizer is None
