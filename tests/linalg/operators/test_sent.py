"""Products in single precision on a device that has no other, against dense algebra."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import generator
from simulated import simulated
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.linalg.operators import KernelOperator, Workspace, kernel_operator
from skscalablegp.solvers import AP, CG, BlockCG, MaxIterations, solve

N, D = 90, 3
KERNELS = {
    "smooth": ConstantKernel(2.0) * RBF([0.5, 1.0, 2.0]) + WhiteKernel(0.1),
    "short": ConstantKernel(2.0) * RBF([0.02, 0.1, 0.1]) + WhiteKernel(0.1),
    "kink": Matern([1.0] * D, nu=0.5) + ConstantKernel(0.3) * Matern(2.0, nu=1.5),
    "product": RationalQuadratic(alpha=0.7) * Matern(nu=2.5) * ConstantKernel(2.0) + WhiteKernel(),
    "autograd": DotProduct() * RBF() + WhiteKernel(0.2),
}
DEVICES = {"mps": ("mps:0", None), "xpu": ("xpu:0", (torch.float64, torch.complex128))}


@pytest.fixture(params=DEVICES.values(), ids=DEVICES)
def gpu(request):
    name, lacks = request.param
    with simulated(name, lacks=lacks) as device:
        yield device


def rows():
    """Rows far from zero; some are twice there, and others at distances of 1e-4."""
    X = 2 * torch.randn(N, D, generator=generator(0), dtype=torch.float64) + 20
    X[7], X[8] = X[60], X[61] + 1e-4
    return X.float()


def dense(kernel, X, theta):
    """H in double precision from the rows in single precision, and its derivatives."""
    H, slopes = kernel.clone_with_theta(theta.numpy())(X.double().numpy(), eval_gradient=True)
    return torch.as_tensor(H), torch.as_tensor(slopes)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "tiled"])
@pytest.mark.parametrize("name", KERNELS)
def test_products_and_gradients(name, keep, gpu):
    X, V = rows(), torch.randn(N, 5, generator=generator(1))
    kernel = compile_kernel(KERNELS[name], D)
    exact, slopes = dense(KERNELS[name], X, kernel.theta0)
    H = kernel_operator(
        kernel, kernel.theta0, X, workspace=Workspace(gpu.device), keep=keep, tile=40
    )
    there = KernelOperator(kernel, kernel.theta0, X.to(gpu.device), keep=keep, tile=40)
    expected = exact @ V.double()
    wanted = torch.einsum("nc,nmp,mc->p", V.double(), slopes, V.double())
    size = (V.abs().double().T @ exact.abs() @ V.abs().double()).diagonal().sum()
    for found in (H.matmul(V), there.matmul(V.to(gpu.device)).cpu()):
        assert found.dtype == torch.float32 and found.is_cpu
        assert_allclose(found, expected, atol=3e-6 * expected.abs().max())
    for grad in (H.bilinear_grad(V, V), there.bilinear_grad(V.to(gpu.device), V.to(gpu.device))):
        assert_allclose(grad.double(), wanted, atol=3e-5 * float(size))
    cross = H.cross(X[:11] + 0.01)
    few = KERNELS[name].clone_with_theta(kernel.theta0.numpy())
    few = few((X[:11] + 0.01).double().numpy(), X.double().numpy())
    assert_allclose(cross.matmul(V), few @ V.double().numpy(), atol=1e-5 * np.abs(few).sum(1).max())


@pytest.mark.parametrize("name", KERNELS)
def test_the_rest_is_on_the_cpu(name, gpu):
    """Products in double precision are exact, and rows, blocks and matrices need no device."""
    X, V = rows(), torch.randn(N, 2, generator=generator(1), dtype=torch.float64)
    kernel = compile_kernel(KERNELS[name], D)
    exact, _ = dense(KERNELS[name], X, kernel.theta0)
    H = kernel_operator(kernel, kernel.theta0, X, workspace=Workspace(gpu.device), tile=40)
    gpu.forget()
    some = torch.arange(0, N, 7)
    for found, expected in (
        (H.matmul(V), exact @ V),
        (H.rows(some), exact[some]),
        (H.block(some), exact[some][:, some]),
        (H.to_dense(), exact),
        (H.diag(), exact.diagonal()),
    ):
        assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(H.matmul(V), exact @ V, atol=1e-9 * float(exact.abs().max()) * N)
    assert not gpu.launches


def test_parts_of_a_problem_send_their_products(gpu):
    """To the device of the problem, and from rows that stay on the CPU."""
    X, some = rows(), torch.arange(0, N, 3)
    kernel = compile_kernel(KERNELS["smooth"], D)
    exact, _ = dense(KERNELS["smooth"], X[some], kernel.theta0)
    table = Rows.of(X.double(), X[:, :1].double())
    whole = GPProblem(kernel, table, workspace=Workspace(gpu.device))
    assert whole.workspace.rows_on == torch.device("cpu")
    for part in (whole.to(torch.float32).subset(some), whole.subset(some).to(torch.float32)):
        gpu.forget()
        found = part.operator(kernel.theta0).matmul(part.Y)
        assert gpu.launches and part.X.is_cpu
        assert_allclose(found, exact @ part.Y.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("solver", [CG(), BlockCG(), AP(20)], ids=lambda s: type(s).__name__)
def test_a_product_waits_once(solver, gpu):
    """For its result; what is sent does not wait, and no step waits besides."""
    X, B = rows(), torch.randn(N, 4, generator=generator(1))
    kernel = compile_kernel(KERNELS["kink"] + WhiteKernel(0.1), D)
    H = kernel_operator(kernel, kernel.theta0, X, workspace=Workspace(gpu.device), tile=40)
    taken = {}
    for limit in (5, 15):
        gpu.forget()
        solution = solve(H, B, solver, stopping=MaxIterations(limit))
        taken[solution.n_iter] = sum(gpu.waits.values())
    (few, first), (many, second) = min(taken.items()), max(taken.items())
    assert many > few and second - first <= many - few, gpu.waits
    gpu.forget()
    H.bilinear_grad(B, B)
    assert sum(gpu.waits.values()) == 1, gpu.waits


def test_memory_of_the_device_that_is_short(gpu):
    """The same message as on other devices; the CPU has room."""
    X, V = rows(), torch.randn(N, 2, generator=generator(1))
    kernel = compile_kernel(KERNELS["smooth"], D)
    H = kernel_operator(kernel, kernel.theta0, X, workspace=Workspace(gpu.device), tile=40)
    gpu.memory = gpu.allocated + 500
    with pytest.raises(MemoryError, match=f"{gpu.device} has no memory left for tiles"):
        H.matmul(V)
