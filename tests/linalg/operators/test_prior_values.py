"""Samples of a prior in blocks of rows: the same numbers as from the whole matrix of features."""

import pytest
import torch
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern

from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import prior_values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_of_rows_give_the_whole_product(dtype, set_workers):
    kernel = compile_kernel(ConstantKernel(2.0) * Matern([0.7, 1.3], nu=1.5) + DotProduct(0.5), 2)
    generator = torch.Generator().manual_seed(0)
    features = sample_prior_features(kernel, 2, 500, generator, dtype)
    X = torch.randn(2100, 2, generator=generator, dtype=torch.float64).to(dtype)
    w = torch.randn(features.n_features, 3, generator=generator, dtype=torch.float64)
    whole = features.evaluate(kernel.theta0, X.double()) @ w
    found = []
    for count in (1, 2):
        set_workers(count)
        found.append(prior_values(features, kernel.theta0, X, w))
    assert found[0].dtype == dtype
    assert torch.equal(*found)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3
    torch.testing.assert_close(found[0].double(), whole, rtol=tolerance, atol=tolerance)
    assert prior_values(features, kernel.theta0, X[:0], w).shape == (0, 3)


def test_gradients_are_not_recorded():
    kernel = compile_kernel(ConstantKernel(2.0) * Matern([0.7, 1.3], nu=1.5), 2)
    features = sample_prior_features(kernel, 2, 20, torch.Generator().manual_seed(0))
    theta = kernel.theta0.requires_grad_(True)
    X, w = torch.zeros(4, 2).double(), torch.ones(features.n_features, 1).double()
    assert not prior_values(features, theta, X, w).requires_grad
