"""Fitted models as torch modules."""

import numpy as np
import pytest
import torch
from export.exported import (
    CATEGORIES,
    KERNELS,
    MODELS,
    NEW,
    RNG,
    UNITS,
    X,
    Y,
    exact,
    fitted,
    marked_slow,
)
from oracles import slope_by_differences
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import skscalablegp as sk
from skscalablegp.export import NotExportable

ROWS = torch.tensor(NEW)
# Traces take seconds: those of the others are slow tests.
FEW = {"neighbours"}


def close(answer, expected, tol=1e-9):
    for found, right in zip(answer, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), right, atol=tol * Y.std())


@pytest.mark.parametrize("name", MODELS)
def test_modules_predict_what_their_models_predict(name):
    model = fitted(name)
    module = sk.to_torch(model)
    close(module(ROWS), model.predict(NEW, return_std=True))
    close([sk.to_torch(model, return_std=False)(ROWS)], [model.predict(NEW)])
    close(module(ROWS[:1]), model.predict(NEW[:1], return_std=True))
    assert not list(module.parameters()) and not module.training


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    model = exact(KERNELS[name]).fit(X, Y - Y.mean())
    close(sk.to_torch(model)(ROWS), model.predict(NEW, return_std=True), 1e-8)


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories_enter_as_codes(name):
    # An unknown category, too.
    codes, new = RNG.randint(3, size=len(X)), RNG.randint(4, size=len(NEW))
    model = clone(CATEGORIES[name]).fit(np.column_stack([X[:, 0], codes]), Y)
    rows = np.column_stack([NEW[:, 0], new])
    close(sk.to_torch(model)(torch.tensor(rows)), model.predict(rows, return_std=True), 1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences(name):
    module, rows = sk.to_torch(fitted(name)), ROWS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(sum(module(rows)).sum(), rows)
    for j, h in enumerate(2e-6 * UNITS):
        unit = torch.eye(3, dtype=torch.float64)[j]
        change = slope_by_differences(lambda t, unit=unit: sum(module(ROWS + t * unit)), h)
        error = (slope[:, j] - change).abs() * UNITS[j] / Y.std()
        # Experts and neighbours change at some rows, and grids have corners between cells.
        assert error.median() < 1e-6 and error.max() < 1e-3


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rational", "periodic"])
def test_gradients_are_finite_at_training_rows(kernel):
    rows = torch.tensor(X[:5], requires_grad=True)
    mean, std = sk.to_torch(exact(KERNELS[kernel]).fit(X, Y))(rows)
    for value in (mean, std):
        (slope,) = torch.autograd.grad(value.sum(), rows, retain_graph=True)
        assert slope.isfinite().all()


@pytest.mark.seldom("nearest")
@pytest.mark.parametrize("name", [marked_slow(name, FEW) for name in MODELS])
def test_torch_export_takes_any_number_of_rows(name):
    module = sk.to_torch(fitted(name))
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (ROWS,), dynamic_shapes=({0: rows},)).module()
    for some in (ROWS[:7], ROWS[:1], ROWS.repeat(3, 1)):
        close(program(some), [part.numpy() for part in module(some)], 1e-10)


def test_several_targets():
    model = exact(KERNELS["rbf"], normalize_y=True).fit(X, np.column_stack([Y, -2 * Y + X[:, 0]]))
    close(sk.to_torch(model)(ROWS), model.predict(NEW, return_std=True))


def test_state_dicts_hold_the_whole_model():
    kernel = KERNELS["product"]
    first, second = (sk.to_torch(exact(kernel).fit(X, y)) for y in (Y, Y[::-1]))
    assert not torch.allclose(first(ROWS)[0], second(ROWS)[0])
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(ROWS), first(ROWS), rtol=0, atol=0)


def test_the_mean_of_an_exact_model_needs_no_matrix():
    model = exact(KERNELS["rbf"]).fit(X, Y)
    sizes = [max(b.numel() for b in sk.to_torch(model, std).buffers()) for std in (True, False)]
    assert sizes == [len(X) ** 2, X.size]


@pytest.mark.parametrize(
    "scaler", [StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler()]
)
def test_pipelines_of_scalers(scaler):
    kernel = RBF([1.0, 1.0, 1.0]) + WhiteKernel(0.1)
    model = make_pipeline(scaler, "passthrough", exact(kernel)).fit(X, Y)
    close(sk.to_torch(model)(ROWS), model.predict(NEW, return_std=True))


class OwnKernel(RBF):
    """A class without a compiled form."""


@pytest.mark.parametrize(
    "model, message",
    [
        (exact(OwnKernel(1.0) + WhiteKernel(0.1)), "OwnKernel .*register_kernel"),
        (make_pipeline(PolynomialFeatures(), exact(RBF() + WhiteKernel())), "PolynomialFeatures"),
        (make_pipeline(MinMaxScaler(clip=True), exact(RBF() + WhiteKernel())), "clip"),
        (RandomForestRegressor(2), "RandomForestRegressor"),
        (KernelRidge(), "KernelRidge"),
        (exact(RBF() + WhiteKernel(0.1), posterior="solve", solver="cg"), "LOVEPredictor"),
    ],
)
def test_refusals_say_what_to_do(model, message):
    with pytest.raises(NotExportable, match=message):
        sk.to_torch(model.fit(X / UNITS, Y))


def test_means_of_models_whose_variances_need_solves():
    model = exact(KERNELS["rbf"], posterior="solve", solver="cg", solver_tol=1e-10).fit(X, Y)
    close([sk.to_torch(model, return_std=False)(ROWS)], [model.predict(NEW)])


@pytest.mark.parametrize("way", [sk.to_torch, sk.draw_functions])
def test_rows_of_another_table_are_refused(way):
    module = way(fitted("exact"))
    message = r"X must have shape \(m, 3\), .* got \(80, 2\): reshape it"
    with pytest.raises(ValueError, match=message):
        module(torch.zeros(80, 2).double())


def test_rows_of_another_table_are_refused_by_classifiers():
    model = sk.SVGPClassifier(n_inducing=5, max_iter=2, random_state=0).fit(X, Y > Y.mean())
    with pytest.raises(ValueError, match=r"X must have shape \(m, 3\), .* got \(8, 2\)"):
        sk.to_torch(model)(torch.zeros(8, 2).double())
