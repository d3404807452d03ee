"""Kernels of noise alone, and variances out of the range of the precision."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, ExpSineSquared, WhiteKernel

from skscalablegp import IterativeGPRegressor, PoERegressor, RFFRegressor, SGPRRegressor


@pytest.mark.parametrize("Model", [RFFRegressor, SGPRRegressor, PoERegressor])
@pytest.mark.parametrize(
    "kernel",
    [
        WhiteKernel(1e-100) ** 2 * ConstantKernel(0.1),
        ExpSineSquared(1.0, 0.5) * WhiteKernel(2.0) ** 2,
    ],
    ids=["white", "periodic times white"],
)
def test_noise_alone_is_no_function(Model, kernel):
    X = np.random.default_rng(0).normal(size=(18, 1))
    with pytest.raises(ValueError, match="noise alone and has no function to learn"):
        Model(kernel).fit(X, X[:, 0])


def test_single_precision_does_not_hold_every_variance():
    X = np.random.default_rng(0).normal(size=(10, 1))
    model = IterativeGPRegressor(WhiteKernel(1e98), solver="cg", dtype="float32")
    with pytest.raises(ValueError, match="dtype='float32' cannot hold"):
        model.fit(X, X[:, 0])
    std = model.set_params(dtype="float64", optimizer=None).fit(X, X[:, 0]).predict_std(X)
    np.testing.assert_allclose(std, 1e49)
