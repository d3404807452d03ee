"""theta's layout, errors, flattening, pickling and the registry."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp import IterativeGPRegressor
from skscalablegp.kernels import (
    Categorical,
    Columns,
    Layout,
    LowRankCategorical,
    Slot,
    SpectralMixture,
    TorchKernel,
    compile_kernel,
    default_kernel,
    register_kernel,
)

C = ConstantKernel


def rows(n=6, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def test_theta_bounds_and_kernel_are_those_of_scikit_learn():
    kernel = C(2.0) * RationalQuadratic(0.5, 3.0, alpha_bounds="fixed") + WhiteKernel(0.1)
    compiled = compile_kernel(kernel, 4)
    assert compiled.n_params == 3
    np.testing.assert_array_equal(compiled.theta0.numpy(), kernel.theta)
    np.testing.assert_array_equal(compiled.bounds.numpy(), kernel.bounds)
    moved = compiled.to_sklearn(compiled.theta0 + 1)
    np.testing.assert_allclose(moved.theta, kernel.theta + 1)
    assert moved.k1.k2.alpha == 3.0 and type(moved) is type(kernel)
    assert compiled.kernel is not kernel and compiled.kernel == kernel


def test_a_kernel_without_free_parameters_has_empty_theta_and_gradient():
    kernel = C(2.0, "fixed") * RBF(0.5, "fixed") + WhiteKernel(0.0, "fixed")
    compiled = compile_kernel(kernel, 2)
    theta = compiled.theta0.requires_grad_()
    assert theta.shape == (0,) and compiled.bounds.shape == (0, 2)
    X = rows()
    np.testing.assert_allclose(compiled.cross(theta, X, X).detach(), kernel(X.numpy()), rtol=1e-12)
    (gradient,) = torch.autograd.grad(compiled.cross(theta, X, X).sum(), theta)
    assert gradient.shape == (0,)
    assert compiled.to_sklearn(theta) == kernel


def test_missing_parts_are_zeros_with_a_zero_gradient():
    X = rows()
    white, smooth = compile_kernel(WhiteKernel(), 2), compile_kernel(RBF(), 2)
    theta = white.theta0.requires_grad_()
    for part in (
        white.cross(theta, X, X[:3]),
        white.diag(theta, X),
        smooth.noise(theta, X),
    ):
        assert not part.any()
        assert torch.autograd.grad(part.sum(), theta)[0].tolist() == [0.0]
    assert white.cross(theta, X, X[:3]).shape == (6, 3)


def test_results_own_their_memory():
    compiled = compile_kernel(C(2.0), 2)
    K = compiled.cross(compiled.theta0, rows(), rows())
    K[0, 0] = 5.0
    assert K[1, 1] == 2.0


def test_rows_can_be_evaluated_in_chunks():
    compiled = compile_kernel(default_kernel(2), 2)
    X, theta = rows(), compiled.theta0
    whole = compiled.cross(theta, X, X)
    parts = torch.cat([compiled.cross(theta, X[i : i + 1], X) for i in range(len(X))])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-15)
    assert compiled.cross(theta, X[:0], X).shape == (0, 6)
    assert compiled.cross(theta, X, X[:0]).shape == (6, 0)


@pytest.mark.parametrize(
    "kernel",
    [
        Matern(nu=1.0),
        PairwiseKernel(),
        CompoundKernel([RBF(), RBF()]),
        C() * PairwiseKernel() + WhiteKernel(),
        type("Mine", (RBF,), {})(),
    ],
    ids=repr,
)
def test_other_kernels_raise_a_type_error_that_lists_what_works(kernel):
    with pytest.raises(TypeError, match=r"or one of .*Matern \(nu = 0.5, 1.5, 2.5 or inf\)"):
        compile_kernel(kernel, 2)


@pytest.mark.parametrize("kernel", ["rbf", None, RBF])
def test_other_objects_raise_a_type_error(kernel):
    with pytest.raises(TypeError, match="must be an object of scikit-learn's Kernel, got"):
        compile_kernel(kernel, 2, any_kernel=True)


def test_length_scales_must_fit_the_columns():
    with pytest.raises(ValueError, match="RBF has 3 length scales, .* 2 columns"):
        compile_kernel(C() * RBF([1.0, 2.0, 3.0]), 2)
    with pytest.raises(ValueError, match="RationalQuadratic takes one length scale"):
        compile_kernel(RationalQuadratic([1.0, 2.0]), 2)
    with pytest.raises(ValueError, match="finite exponent > 0"):
        compile_kernel(RBF() ** -1, 2)


def families(kernel, d=2):
    terms = compile_kernel(kernel, d).stationary_terms()
    if terms is None:
        return None
    return [
        (" ".join(type(leaf.profile).__name__ for leaf in t.leaves), len(t.constants))
        for t in terms
    ]


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (default_kernel(2), [("Matern32", 1)]),
        (RBF(), [("Gaussian", 0)]),
        (Matern(nu=np.inf), [("Gaussian", 0)]),
        (C() * (Matern(nu=0.5) + WhiteKernel()), [("Matern12", 1)]),
        (C() * (RBF() + C() * Matern(nu=2.5)), [("Gaussian", 1), ("Matern52", 2)]),
        (C() * Matern() + C() + WhiteKernel(), [("Matern32", 1), ("", 1)]),
        (RationalQuadratic() * C() * C(2.0, "fixed"), [("RationalQuadratic", 2)]),
        ((C() + C()) ** 2 * RBF(), [("Gaussian", 2)] * 4),
        (WhiteKernel(), []),
        (RBF() * WhiteKernel() + Matern(), [("Matern32", 0)]),
        (RBF() * Matern(), [("Gaussian Matern32", 0)]),
        (RBF() ** 2, [("Gaussian Gaussian", 0)]),
        (RBF() ** 1.5, None),
        (RBF() + DotProduct(), None),
        (C() * Columns(ExpSineSquared(), 0), None),
    ],
)
def test_flattening(kernel, expected):
    assert families(kernel) == expected


def test_flattened_terms_add_up_to_the_kernel():
    kernel = C(2.0) * (RBF([1.0, 2.0]) + C(0.3, "fixed") * RBF(0.5, "fixed")) + C(0.7)
    compiled = compile_kernel(kernel, 2)
    theta, X = compiled.theta0, rows()
    total = torch.zeros(6, 6, dtype=torch.float64)
    for term in compiled.stationary_terms():
        part = term.amplitude(theta).expand(6, 6)
        for leaf in term.leaves:
            scaled = X / leaf.length_scale.value(theta)
            part = part * torch.exp(-(torch.cdist(scaled, scaled) ** 2) / 2)
        total += part
    torch.testing.assert_close(total, compiled.cross(theta, X, X))


def test_a_periodic_kernel_is_refused_on_several_columns():
    """Its matrix has negative eigenvalues there; the estimator refuses it before any work."""
    X = np.random.default_rng(0).uniform(0, 3, (40, 2))
    assert np.linalg.eigvalsh(ExpSineSquared()(X)).min() < -0.1
    message = r"positive definite on one column only, and here it has 2: use .*Columns"
    with pytest.raises(ValueError, match=message):
        compile_kernel(RBF() + ExpSineSquared(), 2)
    steps = []
    with pytest.raises(ValueError, match=f"IterativeGPRegressor: ExpSineSquared.*{message}"):
        IterativeGPRegressor(ExpSineSquared(), callbacks=steps.append).fit(X, X[:, 0])
    assert steps == [] and compile_kernel(ExpSineSquared(), 1).n_params == 2


@pytest.mark.parametrize(
    "kernel, stationary",
    [
        (default_kernel(2), True),
        (C() * (RBF() + Columns(ExpSineSquared(), 0) * Matern(nu=0.5)) ** 0.5, True),
        (SpectralMixture(2, means=[0.1] * 4), True),
        (RBF() + DotProduct(), False),
        (RBF() + DotProduct() * WhiteKernel(), False),
    ],
)
def test_stationary_kernels_do_not_notice_a_shift(kernel, stationary):
    compiled, X = compile_kernel(kernel, 2), rows()
    assert compiled.stationary == stationary
    theta = compiled.theta0
    moved = [
        torch.allclose(f(X), f(X + 3), atol=1e-12)
        for f in (lambda X: compiled.cross(theta, X, X), lambda X: compiled.noise(theta, X))
    ]
    assert all(moved) == stationary


def test_slots_read_theta_or_hold_their_values():
    theta = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    free, fixed = Slot(slice(1, 3)), Slot(None, (0.5,))
    assert (free.size, fixed.size) == (2, 1)
    torch.testing.assert_close(free.value(theta), theta[1:].double().exp())
    assert fixed.value(theta).dtype == torch.float64 and fixed.value(theta).tolist() == [0.5]


@pytest.mark.parametrize("kernel", [default_kernel(2), (RBF() + DotProduct()) ** 2 + WhiteKernel()])
def test_pickling(kernel):
    compiled = compile_kernel(kernel, 2)
    copy = pickle.loads(pickle.dumps(compiled))
    assert isinstance(copy, TorchKernel) and copy.kernel == compiled.kernel
    theta, X = compiled.theta0 + 0.5, rows()
    torch.testing.assert_close(copy.cross(theta, X, X), compiled.cross(theta, X, X))


def test_a_kernel_class_can_be_registered(own_kernels):
    class Halved(RBF):
        pass

    def build(kernel, layout: Layout):
        node = layout.build(RBF(kernel.length_scale, kernel.length_scale_bounds))
        node.label = "Halved"
        return node

    register_kernel(Halved, build, "Halved (a test)")
    X = rows()
    compiled = compile_kernel(C(3.0) + Halved(2.0), 2)
    np.testing.assert_allclose(compiled.cross(compiled.theta0, X, X), (C(3.0) + RBF(2.0))(X))
    with pytest.raises(TypeError, match=r"Halved \(a test\)"):
        compile_kernel(PairwiseKernel(), 2)


def test_default_kernel_has_one_length_scale_per_column():
    assert np.ndim(default_kernel(1).k1.k2.length_scale) == 0
    kernel = default_kernel(3)
    assert kernel.k1.k2.length_scale.shape == (3,) and kernel.k1.k2.nu == 1.5
    assert (kernel.bounds[:, 0] < kernel.theta).all() and (kernel.theta < kernel.bounds[:, 1]).all()


@pytest.mark.gpu
def test_rows_on_a_gpu_with_theta_on_the_cpu(gpu):
    compiled = compile_kernel(default_kernel(3) + RationalQuadratic() + Matern(nu=0.5), 3)
    X = rows(50, 3)
    theta = compiled.theta0.requires_grad_()
    K, K_gpu = compiled.cross(theta, X, X), compiled.cross(theta, X.to(gpu), X.to(gpu))
    assert K_gpu.device.type == "cuda"
    torch.testing.assert_close(K_gpu.cpu(), K)
    (expected,) = torch.autograd.grad(K.sum(), theta)
    torch.testing.assert_close(torch.autograd.grad(K_gpu.sum(), theta)[0], expected)


@pytest.mark.filterwarnings("error")
def test_lower_bounds_that_exclude_no_positive_number():
    kernel = RBF([1.0, 1.0], [(-np.inf, np.inf), (-1.0, 1.0)]) + WhiteKernel(1.0, (0.0, 2.0))
    bounds = compile_kernel(kernel, 2).bounds
    assert bounds.tolist() == [[-np.inf, np.inf], [-np.inf, 0.0], [-np.inf, np.log(2)]]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(np.nan), "length_scale=nan"),
        (RBF(1.0, (-2.0, -1.0)), "bounds of k1__k1__length_scale"),
        (RBF(1.0, (10.0, 1.0)), "bounds of k1__k1__length_scale"),
        (RationalQuadratic(1.0, -1.0), "k1__k1__alpha=-1.0.*positive and finite"),
        (SpectralMixture(1, [0.0], [0.1, 0.1], [0.1, 0.1]), r"k1__k1__weights=array\(\[0.\]\)"),
        (SpectralMixture(1, [1.0], [0.1, 0.1], [0.1, -0.1]), "k1__k1__scales=.*positive"),
        (Columns(Categorical(0.0), 0), "kernel__correlation=0.0.*positive"),
        (Columns(Categorical(0.5, (0.1, 2.0)), 0), "correlation_bounds .* must not exceed 1"),
        (Columns(LowRankCategorical(2, variances=[-1.0, 1.0]), 0), "variances=.*positive"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_values_and_bounds_that_no_training_could_use(kernel, message):
    with pytest.raises(ValueError, match=message):
        compile_kernel(kernel * C() + WhiteKernel(), 2)
