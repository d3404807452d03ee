"""Fused products, and tiles where memory is short, against dense algebra."""

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

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

from skscalablegp import IterativeGPRegressor
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import (
    KernelOperator,
    _products,
    choose_products,
    compiler_for,
)

N, D = 90, 3
KERNELS = {
    "rbf": ConstantKernel(2.0) * RBF([0.5, 1.0, 2.0]) + WhiteKernel(0.1),
    "matern": Matern([1.0] * D, nu=0.5) + 0.3 * Matern(2.0, nu=1.5),
    "product": RationalQuadratic(alpha=0.7) * Matern(nu=2.5) * 2.0 + ConstantKernel(0.5),
}


@pytest.fixture(autouse=True)
def nothing_failed():
    _products._FAILED.clear()


def rows(dtype=torch.float32, n=N):
    """Rows far from zero, some of them twice."""
    X = 2 * torch.randn(n, D, generator=generator(0), dtype=torch.float64) + 100
    X[7] = X[60]
    return X.to(dtype)


def operator(kernel, X, tile=40, **settings):
    compiled = compile_kernel(kernel, D)
    return KernelOperator(compiled, compiled.theta0, X, tile=tile, **settings)


def check(kernel, products, tol=1e-5):
    V = torch.randn(N, 20, generator=generator(1))
    X = rows()
    dense = kernel(X.double().numpy())
    fused = operator(kernel, X, products=products)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = fused.matmul(V), fused.cross(X[:11]).matmul(V)
    for ours, expected in zip(found, (dense, kernel(X[:11].double(), X.double())), strict=True):
        expected = expected @ V.double().numpy()
        assert_allclose(ours.numpy(), expected, atol=tol * np.abs(expected).max())
    some = torch.tensor([7, 60, 3, 89, 0])  # rows 7 and 60 are equal
    chosen, few = fused.chosen(some), dense[some]
    assert_allclose(
        chosen.matmul(V),
        few @ V.double().numpy(),
        atol=tol * np.abs(dense @ V.double().numpy()).max(),
    )
    assert_allclose(
        chosen.rmatmul(V[:5]), few.T @ V[:5].double().numpy(), atol=tol * 5 * dense.max()
    )
    return fused


@pytest.mark.parametrize("name", KERNELS)
def test_the_code_that_is_compiled(name, stand_in, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **settings: function)
    stand_in("_BACKEND", name)  # so that nothing of it is kept
    assert check(KERNELS[name], "compiled")._fused is not None
    assert not _products._FAILED


@pytest.mark.slow
@pytest.mark.seldom("keops", "inductor")
@pytest.mark.parametrize("backend", ["eager", "inductor", "keops"])
def test_what_the_compilers_of_this_machine_make(backend):
    """In a process without checks of shapes, which compilers cannot trace."""
    if compiler_for(torch.device("cpu")) is None:
        pytest.skip("no C++ compiler")
    products = "compiled"
    if backend == "keops":
        pytest.importorskip("pykeops")
        products = "keops"
    here = Path(__file__).parent
    code = (
        "import sys, test_products as t; t._products._BACKEND = sys.argv[1];"
        "[t.check(kernel, sys.argv[2]) for kernel in t.KERNELS.values()];"
        "assert not t._products._FAILED"
    )
    paths = [here, here.parents[1], here.parents[2]]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, backend, products],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )


def test_keops_that_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pykeops.torch", None)
    with pytest.raises(ImportError, match=r"pip install skscalablegp\[keops\]"):
        operator(KERNELS["rbf"], rows(), products="keops")


def test_a_compiler_that_fails_leaves_tiles(monkeypatch):
    def broken(*args):
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(_products, "_compiled", lambda form, backend: broken)
    H, plain = (operator(KERNELS["rbf"], rows(), products=p) for p in ("compiled", "tiles"))
    V = torch.randn(N, 2, generator=generator(1))
    with pytest.warns(RuntimeWarning, match="no compiler today"):
        first = H.matmul(V)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(H.matmul(V), first) and torch.equal(first, plain.matmul(V))


def test_kernels_without_a_form_are_computed_in_tiles():
    kernel = DotProduct() + RBF()
    H = operator(kernel, rows(torch.float64), products="compiled")
    assert H._fused is None
    V = torch.ones(N, 1, dtype=torch.float64)
    assert_allclose(H.matmul(V).numpy(), kernel(H.X.numpy()) @ V.numpy(), rtol=1e-10)


def test_auto_compiles_on_cuda_with_a_compiler():
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    assert choose_products(cuda, "triton")[0] == "compiled"
    assert choose_products(cuda, None)[0] == choose_products(cpu, "g++")[0] == "tiles"


def test_an_estimator_says_how_it_multiplies(stand_in, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **settings: function)
    stand_in("_BACKEND", "of this test")
    X = rows(torch.float64).numpy()
    y = np.sin(X.sum(1))
    settings = dict(solver="cg", max_iter=2, posterior="solve", random_state=0, subset_size=None)
    plain = IterativeGPRegressor(**settings).fit(X, y)
    fused = IterativeGPRegressor(products="compiled", **settings).fit(X, y)
    assert "compiled products" in fused.fit_report_.summary
    assert_allclose(fused.predict(X), plain.predict(X), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ memory


@pytest.mark.night
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "tiled"])
def test_tiles_shrink_to_the_memory(keep):
    """Until the vectors themselves have no room, which is an error that says what to do."""
    n = 1000
    X, V = rows(n=n), torch.randn(n, 2, generator=generator(1))
    expected = operator(KERNELS["rbf"], X).matmul(V)
    with simulated(memory=1 << 30) as gpu:
        H = operator(KERNELS["rbf"], X.to("cuda"), None, keep=keep)
        there = V.to("cuda")
        gpu.memory = gpu.allocated + 1_600_000
        found = H.matmul(there)
        assert H._tile_rows < n and gpu.peak <= gpu.memory
        assert_allclose(found.cpu(), expected, rtol=1e-4, atol=1e-4)
        assert_allclose(
            H.cross(H.X[:50]).matmul(there).cpu() + V[:50] * 0.1, expected[:50], atol=1e-3
        )
        assert len(H.bilinear_grad(there, there)) == H.kernel.n_params
        # What nothing but cycles holds would make room.
        gc.collect()
        gpu.memory = gpu.allocated + 1_000
        with pytest.raises(MemoryError, match="cuda:0 has no memory left for tiles of 256 x 256"):
            H.matmul(there)


@pytest.mark.slow
def test_a_refit_without_memory_leaves_the_old_model_whole():
    X = rows(torch.float64).numpy()
    y = np.sin(X.sum(1))
    with simulated() as gpu:
        model = IterativeGPRegressor(device="cuda", random_state=0, max_iter=2).fit(X, y)
        before, report = model.predict(X[:5], return_std=True), model.fit_report_
        # The driver reports more than there is, as where another process takes it.
        gpu.free = lambda: 8 << 30
        gpu.memory = gpu.allocated + 30_000
        with pytest.raises(MemoryError, match="IterativeGPRegressor"):
            model.fit(np.tile(X, (2, 1)) + np.arange(2 * N)[:, None], np.tile(y, 2))
        gpu.memory = 8 << 30
        for ours, theirs in zip(model.predict(X[:5], return_std=True), before, strict=True):
            assert (ours == theirs).all()
        assert model.fit_report_ is report


def test_auto_chooses_devices_with_double_precision():
    X = np.zeros((10, 1))
    X[:, 0] = range(10)
    with simulated("mps:0"):
        assert IterativeGPRegressor().fit(X, X[:, 0]).device_ == "cpu"
    with simulated("xpu:0"):
        assert IterativeGPRegressor().fit(X, X[:, 0]).device_ == "xpu:0"
