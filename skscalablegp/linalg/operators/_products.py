"""Products of kernel matrices by fused code: tiles that torch compiles, and formulas for KeOps.

Both take the prepared rows of a `StationaryKernel`, and the formulas of its profiles.
"""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Callable
from functools import cache, reduce
from operator import add, mul
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..._devices import has_float64
from ...kernels import Profile
from ._bound import BoundKernel, StationaryKernel, StationaryRows

# The terms of a sum as places of their factors, and the factors' profiles.
Form = tuple[tuple[tuple[int, ...], ...], tuple[Profile, ...]]

# Products that are not computed tile by tile in torch's operations.
FUSED = ("compiled", "keops")

# What compiles tiles; tests replace it by one that takes no time.
_BACKEND = "inductor"


def compiler_for(device: torch.device) -> str | None:
    """The name of what torch compiles with for a device; None if it is not there."""
    if device.type == "cpu":
        found = [name for name in ("g++", "clang++", "cl") if shutil.which(name)]
        return found[0] if found else None
    if device.type not in ("cuda", "xpu") or importlib.util.find_spec("triton") is None:
        return None
    # Triton needs tensor cores of the first generation, or later ones.
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (7, 0)
    return None if old else "triton"


def check_products(products: str, device: torch.device) -> None:
    """Raise a ValueError for fused products on a device without double precision."""
    if products in FUSED and not has_float64(device):
        raise ValueError(
            f"products={products!r} is not available on device={str(device)!r}: use "
            "products='auto'."
        )


def choose_products(device: torch.device, compiler: str | None) -> tuple[str, str]:
    """How "auto" computes products on a device, and why; see `KernelOperator`."""
    if device.type == "cuda" and compiler is not None:
        return "compiled", f"torch compiles tiles with {compiler}"
    if device.type == "cpu":
        return "tiles", "tiles in the cache of a CPU are as fast without a compiler"
    if not has_float64(device):
        return "tiles", f"tiles on {device}"
    return "tiles", f"torch has no compiler for {device}"


def _values(
    form: Form, left: list[Tensor], right: list[Tensor], amplitudes: Tensor, shapes: list[Tensor]
) -> Float[Tensor, "a b"]:
    """The entries of a tile, without noise."""
    terms, profiles = form
    factors: list[Tensor] = []
    for profile, A, B, shape in zip(profiles, left, right, shapes, strict=True):
        # Negative values are rounding errors.
        u = torch.mm(A, B.T).to(amplitudes.dtype).clamp_min(0)
        factors.append(profile.formula(u.sqrt() if profile.kink else u, *shape))
    total = torch.zeros((), dtype=amplitudes.dtype, device=amplitudes.device)
    for amplitude, places in zip(amplitudes, terms, strict=True):
        value = amplitude
        for i in places:
            value = value * factors[i]
        total = total + value
    return total.expand(len(left[0]), len(right[0]))


@cache
def _compiled(form: Form, backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """A tile's products with both of its sides: distances, profiles and products in one graph."""

    def both(
        left: list[Tensor],
        right: list[Tensor],
        amplitudes: Tensor,
        shapes: list[Tensor],
        V_right: Tensor,
        V_left: Tensor,
    ) -> tuple[Tensor, Tensor]:
        K = _values(form, left, right, amplitudes, shapes)
        return torch.mm(K, V_right), torch.mm(K.T, V_left)

    return torch.compile(both, dynamic=True, backend=backend)


def form_of(bound: BoundKernel) -> Form | None:
    """The structure of a kernel, for which code is compiled; None if it has no such form."""
    if not isinstance(bound, StationaryKernel) or not bound.leaves:
        return None
    profiles = tuple(leaf.profile for leaf in bound.leaves)
    overridden = all(type(p).formula is not Profile.formula for p in profiles)
    return (tuple(tuple(places) for _, _, places in bound.terms), profiles) if overridden else None


class CompiledTiles:
    """The products of tiles by compiled code; tiles of torch's operations where that fails.

    Parameters
    ----------
    bound : StationaryKernel
    form : tuple
        See `form_of`.
    """

    def __init__(self, bound: StationaryKernel, form: Form):
        self._bound, self._form = bound, form
        dtype, device = bound.center.dtype, bound.center.device
        amplitudes = torch.tensor([amplitude for _, amplitude, _ in bound.terms], dtype=dtype)
        shapes = [torch.tensor(shape, dtype=dtype) for shape in bound.shapes]
        self._amplitudes = amplitudes.to(device, non_blocking=True)
        self._shapes = [shape.to(device, non_blocking=True) for shape in shapes]

    def both(
        self, left: StationaryRows, right: StationaryRows, V_right: Tensor, V_left: Tensor
    ) -> tuple[Float[Tensor, "a s"], Float[Tensor, "b s"]]:
        """K V_right and K' V_left for the tile K of two ranges of rows."""
        if self._form not in _FAILED:
            function = _compiled(self._form, _BACKEND)
            rows = left.left, right.right
            try:
                return function(*rows, self._amplitudes, self._shapes, V_right, V_left)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # compilers raise many kinds of errors
                _FAILED.add(self._form)
                warnings.warn(
                    f"torch.compile failed ({type(error).__name__}: {str(error)[:200]}): products "
                    "are computed by torch's own operations, which is slower. Give "
                    'products="tiles" to do so from the start.',
                    RuntimeWarning,
                    stacklevel=2,
                )
        tile = self._bound.tile(left, right)
        return tile @ V_right, tile.T @ V_left


# Forms of which the compilation has failed in this process.
_FAILED: set[Form] = set()


class LazyProducts:
    """The products of all rows by KeOps, which compiles one kernel for each formula.

    Distances are sums of squared differences, so that nothing is subtracted from large numbers.

    Parameters
    ----------
    bound : StationaryKernel
    form : tuple
        See `form_of`.

    Raises
    ------
    ImportError
        Without pykeops.
    """

    def __init__(self, bound: StationaryKernel, form: Form):
        self._bound, (self._terms, self._profiles) = bound, form
        self._lazy = _lazy_tensor()

    def product(
        self, left: StationaryRows, right: StationaryRows, V: Float[Tensor, "b s"]
    ) -> Float[Tensor, "a s"]:
        """K V for the rows of two sets, without noise; O(a b (d + s)), and the memory of rows."""
        pairs = zip(left.left, right.left, strict=True)
        factors = [self._factor(i, A, B, V.dtype) for i, (A, B) in enumerate(pairs)]
        total = []
        for (_, amplitude, _), places in zip(self._bound.terms, self._terms, strict=True):
            value = [factors[i] for i in places] or [_Formula.constant(self._lazy, 1.0, V)]
            total.append(reduce(mul, value) * amplitude)
        lazy = reduce(add, total).lazy
        parts = [lazy @ part.contiguous() for part in V.split(_LAZY_COLUMNS, 1)]
        return torch.cat(parts, 1) if parts else V.new_zeros(len(left), 0)

    def _factor(self, i: int, A: Tensor, B: Tensor, dtype: torch.dtype) -> Any:
        d = A.shape[1] - 2
        x = self._lazy(A[:, :d].to(dtype).contiguous()[:, None, :])
        z = self._lazy(B[:, :d].to(dtype).contiguous()[None, :, :])
        u: Any = _Formula(((x - z) ** 2).sum(-1), dtype)
        shape: Any
        profile, shape = self._profiles[i], self._bound.shapes[i]
        return profile.formula(u.sqrt() if profile.kink else u, *shape)


# Right-hand sides in one reduction: formulas of more columns take minutes to compile.
_LAZY_COLUMNS = 16


def _lazy_tensor() -> Any:
    """KeOps' tensors, if the package is installed."""
    try:
        from pykeops.torch import LazyTensor
    except ImportError as error:
        raise ImportError(
            'products="keops" needs pykeops: pip install skscalablegp[keops], or use '
            'products="auto".'
        ) from error
    return LazyTensor


class _Formula:
    """A KeOps tensor that torch's functions accept, so that profiles need no second formula."""

    def __init__(self, lazy: Any, dtype: torch.dtype):
        self.lazy, self.dtype = lazy, dtype

    @classmethod
    def constant(cls, lazy_tensor: Any, value: float, V: Tensor) -> _Formula:
        """The same number in every entry."""
        zero = lazy_tensor(V.new_zeros(1, len(V), 1))
        return cls(zero + value, V.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> _Formula:
        name = func.__name__
        if kwargs or name not in ("exp", "log1p", "sqrt", "cos", "sin", "add", "mul", "div", "neg"):
            raise NotImplementedError(f"torch.{name} in a formula for KeOps")
        operand, *rest = args
        return getattr(operand, name)(*rest)

    def _other(self, other: Any) -> Any:
        return other.lazy if isinstance(other, _Formula) else float(other)

    def __add__(self, other: Any) -> _Formula:
        return _Formula(self.lazy + self._other(other), self.dtype)

    def __mul__(self, other: Any) -> _Formula:
        return _Formula(self.lazy * self._other(other), self.dtype)

    def __sub__(self, other: Any) -> _Formula:
        return _Formula(self.lazy - self._other(other), self.dtype)

    def __rsub__(self, other: Any) -> _Formula:
        return _Formula(self._other(other) - self.lazy, self.dtype)

    def __truediv__(self, other: Any) -> _Formula:
        return _Formula(self.lazy / self._other(other), self.dtype)

    def __neg__(self) -> _Formula:
        return _Formula(-self.lazy, self.dtype)

    __radd__, __rmul__ = __add__, __mul__

    def clamp_min(self, least: float) -> _Formula:
        """Squared distances are sums of squares, which are not negative in KeOps."""
        return self

    def exp(self) -> _Formula:
        return _Formula(self.lazy.exp(), self.dtype)

    def log1p(self) -> _Formula:
        return _Formula((self.lazy + 1.0).log(), self.dtype)

    def sqrt(self) -> _Formula:
        return _Formula(self.lazy.sqrt(), self.dtype)

    def cos(self) -> _Formula:
        return _Formula(self.lazy.cos(), self.dtype)

    def sin(self) -> _Formula:
        return _Formula(self.lazy.sin(), self.dtype)
