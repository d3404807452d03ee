"""Variances that cost a solve for each prediction, against exact ones."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, RRCGRegressor
from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import AP, CG

MATERN = ConstantKernel(1.0) * Matern(nu=1.5, length_scale=0.7)


def table(n=300, m=40):
    """Rows, targets, and new rows of which the last ten are training rows."""
    rng = np.random.default_rng(0)
    X = rng.random((n, 3))
    return X, np.sin(6 * X[:, 0]) + X[:, 1], np.vstack([rng.random((m - 10, 3)), X[:10]])


def solved(kernel, **settings):
    """Without training, so that only the solves matter."""
    return IterativeGPRegressor(
        kernel, optimizer=None, posterior="solve", random_state=0, **settings
    )


def exact(kernel, X, y, alpha=1e-10):
    return GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, y)


@pytest.mark.parametrize("solver", ["auto", "cg", "block_cg", "adasap", AP(50)], ids=str)
@pytest.mark.parametrize("noise", [1e-3, 1e-5])
def test_latent_deviations_are_within_a_percent(solver, noise):
    X, y, X_new = table()
    ours = solved(MATERN + WhiteKernel(noise), solver=solver).fit(X, y)
    std = ours.predict_std(X_new, include_noise=False)
    # scikit-learn's deviations without the noise: the same H, the noise in alpha.
    reference = exact(MATERN, X, y, alpha=noise).predict(X_new, return_std=True)[1]
    np.testing.assert_allclose(std, reference, rtol=0.01)


@pytest.mark.parametrize("solver", ["cg", "block_cg", "adasap"])
def test_covariances_are_positive_semidefinite(solver):
    X, y, X_new = table()
    ours = solved(MATERN, solver=solver, alpha=1e-3).fit(X, y)
    covariance = ours.predict(X_new, return_cov=True)[1]
    assert np.linalg.eigvalsh(covariance).min() > -1e-10
    reference = exact(MATERN, X, y, alpha=1e-3).predict(X_new, return_cov=True)[1]
    np.testing.assert_allclose(covariance, reference, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_unfinished_solve_never_claims_too_much():
    X, y, X_new = table()
    kernel = RBF(0.3) + WhiteKernel(0.01)
    reference = exact(RBF(0.3), X, y, alpha=0.01)
    ours = solved(kernel, solver=CG(), solver_max_epochs=4).fit(X, y)
    std = ours.predict_std(X_new, include_noise=False)
    assert (std >= reference.predict(X_new, return_std=True)[1]).all()
    covariance = ours.predict(X_new, return_cov=True)[1] - 0.01 * np.eye(len(X_new))
    excess = covariance - reference.predict(X_new, return_cov=True)[1]
    assert np.linalg.eigvalsh(excess).min() > -1e-10


@pytest.mark.parametrize(
    "model",
    [
        solved(MATERN + WhiteKernel(0.01), solver="cg", preconditioner=Nystrom(rank=20)),
        solved(MATERN + WhiteKernel(0.01), solver="ap", preconditioner="nystrom"),
        solved(MATERN + WhiteKernel(0.01), solver=CG(Nystrom(rank=20))),
        RRCGRegressor(
            MATERN + WhiteKernel(0.01),
            optimizer=None,
            posterior="solve",
            preconditioner=Nystrom(rank=20),
        ),
    ],
    ids=["cg", "ap", "object", "rrcg"],
)
def test_the_preconditioner_serves_all_solves_of_predictions(model, monkeypatch):
    X, y, X_new = table(100)
    built = []
    for config in (Nystrom, PivotedCholesky):
        monkeypatch.setattr(config, "build", counted(config.build, config.__name__, built))
    model.fit(X, y)
    built.clear()
    model.predict(X_new)
    assert built == []
    model.predict(X_new, return_std=True)
    model.predict(X_new, return_cov=True)
    assert built == ["Nystrom"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, X: model.predict(X, return_std=True),
        lambda model, X: model.predict_std(X),
        lambda model, X: model.predict(X, return_cov=True),
        lambda model, X: model.sample_y(X),
    ],
    ids=["return_std", "predict_std", "return_cov", "sample_y"],
)
def test_solves_that_do_not_converge_are_one_warning_a_prediction(ask, thresholds):
    X, y, X_new = table(100)
    thresholds(_CHUNK_BYTES=8 * 100 * 7)
    kernel = RBF(0.2) + WhiteKernel(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = solved(kernel, solver=CG(), solver_max_epochs=4).fit(X, y)
    for _ in range(2):
        with pytest.warns(ConvergenceWarning, match=r"residual of \d.*solver_max_epochs") as caught:
            ask(model, X_new)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X_new)
        ask(solved(kernel, solver="cg").fit(X, y), X_new)


def counted(build, name, calls):
    def counting(*args):
        calls.append(name)
        return build(*args)

    return counting
