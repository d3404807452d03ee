"""How often a GPU would be waited for: never within a product, twice at most in a step."""

import pytest
import torch
from oracles import generator
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from synchronisations import synchronisations

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator
from skscalablegp.linalg.solvers import SOLVERS
from skscalablegp.solvers import MaxIterations, solve

N, D = 600, 3


@pytest.fixture(params=[True, False], ids=["kept", "tiled"])
def operator(request, monkeypatch):
    module = "skscalablegp.linalg.operators._kernel"
    monkeypatch.setattr(f"{module}._CPU_TILE", 200)
    # On a GPU parts are added where they are; NumPy adds them on a CPU only.
    monkeypatch.setattr(f"{module}._add", torch.Tensor.add_)
    X = torch.randn(N, D, generator=generator(0))
    kernel = compile_kernel(Matern() + WhiteKernel(1e-3), D)
    operator = KernelOperator(kernel, kernel.theta0, X, keep=request.param)
    operator.matmul(torch.ones(N, 1))
    return operator


@pytest.fixture
def B():
    return torch.randn(N, 4, generator=generator(1))


def test_what_is_counted(monkeypatch):
    x = torch.ones(3)
    with synchronisations(monkeypatch) as counter:
        float(x.sum())
        bool((x > 0).all())
        x[x > 0]
        x.numpy()
        assert counter.count == 4
        there = x.cpu()
        assert counter.count == 5
        float(there.sum() + torch.tensor(1.0) + torch.where(there > 0, 1, 0).max())
        assert counter.count == 5
        float((there.to(torch.device("cpu")) * 2).sum())
        assert counter.count == 6
    float(x.sum())
    assert counter.count == 6


def test_products_wait_for_nothing(operator, B, monkeypatch):
    rows = torch.arange(0, N, 7)
    cross = operator.cross(operator.X[:50])
    for product in (
        lambda: operator.matmul(B),
        lambda: operator.rows(rows),
        lambda: operator.block(rows),
        operator.diag,
        lambda: cross.matmul(B),
        cross.prior_diag,
    ):
        with synchronisations(monkeypatch) as counter:
            product()
        assert not counter.places


def test_gradients_are_fetched_once(operator, B, monkeypatch):
    with synchronisations(monkeypatch) as counter:
        operator.bilinear_grad(B, B)
    assert counter.count == 1, counter.places


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_waits_twice_at_most(name, operator, B, monkeypatch):
    """Between the twentieth step and the fortieth; every block of rows has then been seen."""
    solver = SOLVERS[name]()
    size = {"block_size", "batch_size"} & set(solver.get_params())
    solver.set_params(**dict.fromkeys(size, 200))
    taken = {}
    for limit in (20, 40):
        with synchronisations(monkeypatch) as counter:
            solution = solve(operator, B, solver, stopping=MaxIterations(limit))
        taken[solution.n_iter] = counter.count
    (few, first), (many, second) = min(taken.items()), max(taken.items())
    assert many == 40 or name == "cholesky"
    assert second - first <= 2 * (many - few), counter.places
