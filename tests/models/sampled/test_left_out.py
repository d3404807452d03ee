"""Leave-one-out predictions of kernel functions at some of the rows."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPRegressor
from skscalablegp.core import fitted_process


def test_rows_left_out_are_those_of_dense_algebra():
    """Few functions of a steep kernel leave a remainder that is larger than the noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    kernel = ConstantKernel(1.0) * RBF(0.4) + WhiteKernel(0.01)
    model = QSGPRegressor(
        kernel, basis="rows", n_components=40, optimizer=None, random_state=0
    ).fit(X, y)
    posterior, at = model._posterior(), model._inputs(X).double()
    Phi, noise = posterior.psi(at), posterior.noise(at).double()
    y = torch.tensor(y - np.mean(model._y_train_mean)) / float(np.mean(model._y_train_std))
    rows = torch.arange(0, 200, 20)
    mean, variance = posterior.leave_one_out(rows, at[rows], y[rows, None], 0 * noise[rows])
    left = torch.as_tensor(model.kernel_.diag(at)) - noise - Phi.square().sum(1)
    assert float((left / noise).max()) > 2
    for k, i in enumerate(rows.tolist()):
        others = torch.arange(200) != i
        weighted = Phi[others] / noise[others, None]
        precision = torch.eye(Phi.shape[1], dtype=torch.float64) + Phi[others].T @ weighted
        covariance = torch.linalg.inv(precision)
        assert_allclose(mean[k, 0], Phi[i] @ covariance @ (weighted.T @ y[others]), rtol=1e-7)
        own = posterior.scale * (left[i] + Phi[i] @ covariance @ Phi[i]) + noise[i]
        assert_allclose(variance[k], own, rtol=1e-7)


@pytest.mark.night
def test_errors_of_left_out_rows_are_those_of_new_rows_where_most_rows_are_points():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (4000, 6))
    # Too rough for 3,000 rows, so that every row has something of its own.
    waves = rng.normal(size=(400, 6)) * 3, rng.uniform(0, 2 * np.pi, 400)
    y = np.cos(X @ waves[0].T + waves[1]).sum(1) / 200**0.5 + 0.05 * rng.normal(size=4000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = QSGPRegressor(random_state=0).fit(X[:3000], y[:3000])
    new = np.sqrt(np.mean((model.predict(X[3000:]) - y[3000:]) ** 2))
    left = fitted_process(model).left_out(X[:3000], y[:3000], None, np.arange(3000))
    own = np.sqrt(np.mean((left.mean - y[:3000]) ** 2))
    assert 0.9 < own / new < 1.1
