"""How often a GPU is waited for: never within a product, and once in a step of a solver."""

import pytest
import torch
from oracles import generator
from simulated import simulated
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator
from skscalablegp.linalg.solvers import SOLVERS
from skscalablegp.solvers import MaxIterations, solve

N, D = 600, 3

# A step of ADASAP factorises a small matrix twice, and reads whether that went well.
WAITS = {"adasap": 3}


@pytest.fixture
def gpu():
    with simulated() as device:
        yield device


def make_operator(monkeypatch, **settings):
    monkeypatch.setattr("skscalablegp.linalg.operators._kernel._GPU_TILE", 200)
    X = torch.randn(N, D, generator=generator(0)).to("cuda")
    kernel = ConstantKernel(2.0, "fixed") * Matern([1.0] * D) + WhiteKernel(1e-3)
    kernel = compile_kernel(kernel, D)
    return KernelOperator(kernel, kernel.theta0, X, **settings)


@pytest.fixture(params=[True, False], ids=["kept", "tiled"])
def operator(request, monkeypatch, gpu):
    operator = make_operator(monkeypatch, keep=request.param)
    operator.matmul(torch.ones(N, 1, device="cuda"))
    return operator


@pytest.fixture
def B(gpu):
    return torch.randn(N, 4, generator=generator(1)).to("cuda")


def test_products_wait_for_nothing(operator, B, gpu):
    rows = torch.arange(0, N, 7, device="cuda")
    cross = operator.cross(operator.X[:50])
    for product in (
        lambda: operator.matmul(B),
        lambda: operator.rows(rows),
        lambda: operator.block(rows),
        operator.diag,
        operator.to_dense,
        lambda: operator.cross(operator.X[:50]),
        lambda: cross.matmul(B),
        cross.prior_diag,
    ):
        gpu.forget()
        product()
        assert not gpu.waits


def test_an_operator_waits_once(gpu, monkeypatch):
    """It reads the spread of the rows, on which the precision of distances depends."""
    make_operator(monkeypatch)
    gpu.forget()
    make_operator(monkeypatch)
    assert {place for place in gpu.waits if place != "elsewhere"} == set(gpu.fetched)
    assert sum(gpu.fetched.values()) == 1


def test_gradients_are_fetched_once(operator, B, gpu):
    gpu.forget()
    operator.bilinear_grad(B, B)
    assert sum(gpu.waits.values()) == sum(gpu.fetched.values()) == 1, gpu.waits


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_waits_once(name, operator, B, gpu):
    """Between the twentieth step and the fortieth; every block of rows has then been seen."""
    solver = SOLVERS[name]()
    size = {"block_size", "batch_size"} & set(solver.get_params())
    solver.set_params(**dict.fromkeys(size, 200))
    taken = {}
    for limit in (20, 40):
        gpu.forget()
        solution = solve(operator, B, solver, stopping=MaxIterations(limit))
        taken[solution.n_iter] = sum(gpu.waits.values())
    (few, first), (many, second) = min(taken.items()), max(taken.items())
    assert many == 40 or name == "cholesky"
    assert second - first <= WAITS.get(name, 1) * (many - few), gpu.waits


@pytest.mark.parametrize("name", ["cg", "block_cg"])
def test_columns_that_break_are_found_without_a_wait(name, gpu, monkeypatch):
    """The answer comes with the norms, and the solution is the one before the step."""
    operator = make_operator(monkeypatch)
    operator.noise.fill_(-50.0)
    B = torch.randn(N, 3, generator=generator(1)).to("cuda")
    solution = solve(operator, B, SOLVERS[name](), stopping=MaxIterations(30))
    assert solution.status.name == "BREAKDOWN"
    assert solution.value.cpu().isfinite().all()
