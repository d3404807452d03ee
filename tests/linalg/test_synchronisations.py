"""How often a GPU is waited for: never within a product, and once in a step of a solver."""

import pytest
import torch
from oracles import generator
from simulated import simulated
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator
from skscalablegp.linalg.solvers import SOLVERS
from skscalablegp.solvers import ADASAP, CG, BlockCG, MaxIterations, solve

N, D = 600, 3


@pytest.fixture
def gpu():
    with simulated() as device:
        yield device


def make_operator(**settings):
    X = torch.randn(N, D, generator=generator(0)).to("cuda")
    kernel = ConstantKernel(2.0, "fixed") * Matern([1.0] * D) + WhiteKernel(1e-3)
    kernel = compile_kernel(kernel, D)
    return KernelOperator(kernel, kernel.theta0, X, tile=200, **settings)


@pytest.fixture(params=[True, False], ids=["kept", "tiled"])
def operator(request, gpu):
    operator = make_operator(keep=request.param)
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
        lambda: operator.chosen(rows).rmatmul(B[: len(rows)]),
        lambda: operator.chosen(rows[:9]).block(),
        lambda: operator.chosen(rows[:9]).matmul(B),
        lambda: operator.chosen(rows[:9]).rmatmul(B[:9]),
        operator.diag,
        operator.to_dense,
        lambda: operator.cross(operator.X[:50]),
        lambda: cross.matmul(B),
        cross.prior_diag,
    ):
        gpu.forget()
        product()
        assert not gpu.waits


def test_an_operator_waits_once(gpu):
    """It reads the spread of the rows, on which the precision of distances depends."""
    make_operator()
    gpu.forget()
    make_operator()
    assert {place for place in gpu.waits if place != "elsewhere"} == set(gpu.fetched)
    assert sum(gpu.fetched.values()) == 1


def test_gradients_are_fetched_once(operator, B, gpu):
    gpu.forget()
    operator.bilinear_grad(B, B)
    assert sum(gpu.waits.values()) == sum(gpu.fetched.values()) == 1, gpu.waits


@pytest.mark.parametrize("name", [*SOLVERS, "adasap exact"])
def test_a_step_waits_once(name, operator, B, gpu):
    """Between the twentieth step and the fortieth; every block of rows has then been seen."""
    solver = ADASAP(rank=None) if name == "adasap exact" else SOLVERS[name]()
    size = {"block_size", "batch_size"} & set(solver.get_params())
    solver.set_params(**dict.fromkeys(size, 200))
    taken = {}
    for limit in (20, 40):
        gpu.forget()
        solution = solve(operator, B, solver, stopping=MaxIterations(limit))
        taken[solution.n_iter] = sum(gpu.waits.values())
    (few, first), (many, second) = min(taken.items()), max(taken.items())
    assert many == 40 or name == "cholesky"
    assert second - first <= many - few, gpu.waits


BREAKING = [CG(), BlockCG(), ADASAP(200, rank=None)]


@pytest.mark.parametrize("solver", BREAKING, ids=["cg", "block_cg", "adasap"])
def test_columns_that_break_are_found_without_a_wait(solver, gpu):
    """The answer comes with the norms, and the solution is the one before the step."""
    operator = make_operator()
    operator.noise.fill_(-50.0)
    B = torch.randn(N, 3, generator=generator(1)).to("cuda")
    solution = solve(operator, B, solver, stopping=MaxIterations(30))
    assert solution.status.name == "BREAKDOWN"
    assert solution.value.cpu().isfinite().all()


def test_jitter_of_singular_blocks_is_chosen_on_the_device(gpu):
    """Every row twice and no noise: without jitter there is no factor; the first that suffices."""
    X = torch.randn(N // 2, D, generator=generator(0)).repeat(2, 1)
    kernel = compile_kernel(ConstantKernel(2.0, "fixed") * Matern([1.0] * D), D)
    B = torch.randn(N // 2, 2, generator=generator(1)).repeat(2, 1)
    found = {}
    for device in ("cpu", "cuda"):
        operator = KernelOperator(kernel, kernel.theta0, X.to(device))
        solver = ADASAP(N, rank=None)
        solution = solve(operator, B.to(device), solver, stopping=MaxIterations(20))
        assert 0 < solution.stats["jitter"] < 1e-3
        found[device] = operator.to_dense().double().cpu() @ solution.value.double().cpu()
    residuals = [float((found[d] - B).norm() / B.norm()) for d in found]
    assert max(residuals) < 0.05, residuals
