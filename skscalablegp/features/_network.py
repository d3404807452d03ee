"""Neural networks as feature maps, which are pure functions of their parameters and of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}

# Number of random rows with which a new network is tested.
_TRIAL_ROWS = 8
# Distances beyond the limits of a column are measured in this share of the width between them,
# which is about half the range of most entries (`column_limits`).
_UNIT = 1 / 6


class Network(ABC):
    """A map x -> z that takes its parameters as an argument, so that an instance never changes.

    Attributes
    ----------
    n_features_in : int
        Number of columns of x.
    n_features : int
        Number of columns of z.
    n_trainable : int
        Number of trained parameters, which come first; the others do not change.
    """

    n_features_in: int
    n_features: int
    n_trainable: int

    @abstractmethod
    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Initial parameters on the CPU, whose randomness comes from the generator alone."""

    @abstractmethod
    def __call__(self, params: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        """The features of the rows of X, differentiable in the parameters and in X."""

    def module(self, params: Sequence[Tensor]) -> nn.Module:
        """The map at these parameters as a torch module, whose buffers they are."""
        return NetworkModule(self, params)


class NetworkModule(nn.Module):
    """A network with its parameters as buffers."""

    def __init__(self, network: Network, params: Sequence[Tensor]):
        super().__init__()
        self._network, self._count = network, len(params)
        for number, value in enumerate(params):
            self.register_buffer(f"tensor{number}", value.detach().cpu().clone())

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        return self._network([getattr(self, f"tensor{k}") for k in range(self._count)], X)


@dataclass(frozen=True)
class DenseNetwork(Network):
    """Fully connected layers with an activation after each; without layers it is the identity.

    Attributes
    ----------
    widths : tuple of int
        Number of columns of X, then of each layer.
    activation : str
        A key of `ACTIVATIONS`.
    linear_end : bool
        Whether the last layer has no activation.
    """

    widths: tuple[int, ...]
    activation: str = "relu"
    linear_end: bool = False

    @property
    def n_features_in(self) -> int:
        return self.widths[0]

    @property
    def n_features(self) -> int:
        return self.widths[-1]

    @property
    def n_trainable(self) -> int:
        return 2 * (len(self.widths) - 1)

    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Normal weights of variance 2 / fan-in (He et al. 2015), uniform biases."""
        params = []
        for fan_in, width in zip(self.widths[:-1], self.widths[1:], strict=True):
            weight = torch.randn(width, fan_in, generator=generator, dtype=torch.float64)
            bias = 2 * torch.rand(width, generator=generator, dtype=torch.float64) - 1
            params += [weight * (2 / fan_in) ** 0.5, bias / fan_in**0.5]
        return [p.to(dtype) for p in params]

    def __call__(self, params: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        activate = ACTIVATIONS[self.activation]
        last = self.n_trainable // 2 - 1 if self.linear_end else None
        for k, (weight, bias) in enumerate(zip(params[::2], params[1::2], strict=True)):
            X = F.linear(X, weight, bias)
            X = X if k == last else activate(X)
        return X


@dataclass(frozen=True)
class LimitedNetwork(Network):
    """A network whose inputs grow with the logarithm of the distance beyond limits.

    Networks continue in straight lines, however steep. A single far entry would otherwise decide
    their gradients in training. Entries that stayed at a limit would make far rows look like near
    ones, whose standard deviations are small.

    Attributes
    ----------
    network : Network
    low, high : tuple of float
        The limits of each column, infinite where there are none.
    """

    network: Network
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def n_features_in(self) -> int:
        return self.network.n_features_in

    @property
    def n_features(self) -> int:
        return self.network.n_features

    @property
    def n_trainable(self) -> int:
        return self.network.n_trainable

    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return self.network.initial(generator, dtype)

    def __call__(self, params: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        low, high = X.new_tensor(self.low), X.new_tensor(self.high)
        near = X.clamp(low, high)
        beyond, width = X - near, high - low
        unit = torch.where(width.isfinite(), _UNIT * width, 1.0)
        return self.network(params, near + beyond.sign() * unit * torch.log1p(beyond.abs() / unit))


def has_first_layer(network: Network) -> bool:
    """Whether `weigh_inputs` changes it: it has layers, and is not a module that the user gives."""
    network = network.network if isinstance(network, LimitedNetwork) else network
    return isinstance(network, DenseNetwork) and network.n_trainable > 0


def weigh_inputs(
    network: Network, params: Sequence[Tensor], weights: np.ndarray | None
) -> list[Tensor]:
    """Parameters whose first layer has the weights of each column times a factor.

    Parameters
    ----------
    network : Network
        Modules that the user gives, and networks without layers, stay as they are.
    params : sequence of Tensor
        Initial parameters.
    weights : ndarray of shape (d,) or None
        A factor for each column of X; None for no change.
    """
    params = list(params)
    if weights is not None and has_first_layer(network):
        params[0] = params[0] * torch.as_tensor(weights).to(params[0])
    return params


class _Copies:
    """Returns copies, on the CPU, of a module that the user has given, which is never trained."""

    def __init__(self, module: torch.nn.Module):
        self.module = deepcopy(module).cpu()

    def __call__(self, n_columns: int) -> torch.nn.Module:
        return deepcopy(self.module)


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """Any `torch.nn.Module`, used as a function of its parameters and buffers.

    Attributes
    ----------
    factory : callable
        ``factory(n_features_in)`` returns a new module. It is called with a temporary global seed,
        so that random initial weights depend on the generator only. When a pickled model is used,
        it is called again, and must return a module with tensors of the same shapes.
    n_features_in, n_features, n_trainable : int
        As in `Network`. `make_network` determines the last two.
    """

    factory: Callable[[int], torch.nn.Module]
    n_features_in: int
    n_features: int = 0
    n_trainable: int = 0

    def __post_init__(self):
        # The module is not a field, and so not part of comparisons and pickles.
        object.__setattr__(self, "_module", [])

    def make(self, seed: int = 0) -> torch.nn.Module:
        """A new module; the global random state is restored afterwards."""
        with torch.random.fork_rng(devices=[]):
            # Only the generator of the CPU is restored, so that the seeds of GPUs are not changed.
            torch.default_generator.manual_seed(seed)
            module = self.factory(self.n_features_in)
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                "feature_extractor must return a torch.nn.Module for a number of columns, but "
                f"{self.factory} returned {type(module).__name__} for {self.n_features_in}."
            )
        return module

    @staticmethod
    def _tensors(module: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Trained parameters by name, and frozen parameters and buffers by name."""
        named = dict(module.named_parameters())
        trained = {name: p for name, p in named.items() if p.requires_grad}
        frozen = {name: p for name, p in named.items() if not p.requires_grad}
        return trained, {**frozen, **dict(module.named_buffers())}

    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        tensors = [p for part in self._tensors(self.make(seed)) for p in part.values()]
        return [_cast(p.detach().cpu().clone(), dtype) for p in tensors]

    def __call__(self, params: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        return self.run(params, X)

    def run(self, params: Sequence[Tensor], X: Tensor) -> Any:
        """The output of the module, of any type."""
        if not self._module:
            # This module only defines the function; every call replaces its tensors.
            self._module.append(self.make())
        module = self._module[0]
        names = [name for part in self._tensors(module) for name in part]
        return torch.func.functional_call(module, dict(zip(names, params, strict=True)), (X,))

    def __reduce__(self):
        settings = (self.factory, self.n_features_in, self.n_features, self.n_trainable)
        return type(self), settings


def make_network(
    n_columns: int,
    feature_extractor: Any = (128, 128),
    activation: str = "relu",
    linear_end: bool = False,
) -> Network:
    """The network that the parameters of an estimator describe.

    Parameters
    ----------
    n_columns : int
        Number of columns of X.
    feature_extractor : int, sequence of int, callable, torch.nn.Module or None, \
            default=(128, 128)
        Widths of fully connected layers, or a function that returns a module for a number of
        columns, or a module. Of a module a copy is trained, which starts from its weights. () and
        None are the identity.
    activation : str, default="relu"
        The activation after each fully connected layer, a key of `ACTIVATIONS`.
    linear_end : bool, default=False
        Whether the last fully connected layer has no activation.

    Returns
    -------
    Network

    Raises
    ------
    TypeError
        For a function that does not return a module.
    ValueError
        For widths that are not positive integers, an unknown activation, or a module whose output
        depends on the other rows of a batch, is random, has the wrong shape or is not finite.
    """
    if not callable(feature_extractor):
        widths = _widths(() if feature_extractor is None else feature_extractor)
        return DenseNetwork((n_columns, *widths), _activation(activation), linear_end)
    given = isinstance(feature_extractor, torch.nn.Module)
    factory = _Copies(feature_extractor) if given else feature_extractor
    draft = ModuleNetwork(factory, n_columns)
    trained, _ = draft._tensors(draft.make())
    return ModuleNetwork(factory, n_columns, _try_module(draft), len(trained))


def check_features(phi: Tensor, what: str = "The network") -> None:
    """Raise an error for features that are not finite.

    Parameters
    ----------
    phi : Tensor of shape (n, q)
    what : str, default="The network"
        The origin of the features, for the message.

    Raises
    ------
    ValueError
        The message says how many rows are affected.
    """
    bad = int((~torch.isfinite(phi)).any(1).sum())
    if bad:
        raise ValueError(
            f"{what} returned NaN or infinity for {bad} of {len(phi)} rows. Check its layers "
            "(logarithms, divisions, very large initial weights) on standardised rows."
        )


def network_to_numpy(params: Sequence[Tensor]) -> list[np.ndarray]:
    """Parameters as arrays, which become fitted state."""
    return [p.detach().cpu().numpy().copy() for p in params]


def network_from_numpy(
    arrays: Sequence[np.ndarray], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """The inverse of `network_to_numpy`, on the CPU."""
    return [_cast(torch.tensor(a), dtype) for a in arrays]


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _widths(sizes: Any) -> tuple[int, ...]:
    widths = np.atleast_1d(np.asarray(sizes))
    if not widths.size:
        return ()
    if widths.ndim != 1 or widths.dtype.kind not in "iu" or widths.min() < 1:
        raise ValueError(
            "feature_extractor must be positive integers, such as (128, 128), a function that "
            f"returns a torch.nn.Module for a number of columns, or a module; got {sizes!r}."
        )
    return tuple(int(width) for width in widths)


def _activation(name: Any) -> str:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(repr(key) for key in ACTIVATIONS)
        raise ValueError(f"activation={name!r} is unknown: use one of {known}.")
    return name


def _try_module(network: ModuleNetwork) -> int:
    """The number of columns of a module's output, after tests on some random rows.

    New modules are in training mode, in which batch normalisation and dropout can be recognised.
    After ``module.eval()`` both are functions of a row, and accepted.
    """
    generator = torch.Generator().manual_seed(0)
    params = network.initial(generator, torch.float64)
    X = torch.randn(_TRIAL_ROWS, network.n_features_in, generator=generator, dtype=torch.float64)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        kept = [p.clone() for p in params]
        try:
            Z = network.run(params, X)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"The network failed on {len(X)} rows of {X.shape[1]} columns: {error}"
            ) from error
        if not isinstance(Z, Tensor) or Z.ndim != 2 or len(Z) != len(X) or not Z.shape[1]:
            shape = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
            raise ValueError(
                f"The network must turn (m, {network.n_features_in}) into (m, q); it turned "
                f"{tuple(X.shape)} into {shape}."
            )
        check_features(Z)
        again = network.run(kept, X)
        try:
            alone = torch.cat([network.run(kept, x) for x in X.split(1)])
        except (ValueError, RuntimeError):
            alone = None  # Batch normalisation refuses single rows.
    if not torch.allclose(Z, again):
        raise ValueError(
            "The network returned different features for the same rows: leave out random layers "
            "such as Dropout, and layers that keep running statistics, such as batch norm."
        )
    if alone is None or alone.shape != Z.shape or not torch.allclose(Z, alone, rtol=1e-6):
        raise ValueError(
            "The network's features of a row depend on the other rows of its batch, so that no "
            "kernel is defined: leave out batch norm, or use LayerNorm, which normalises each row "
            "by itself."
        )
    return Z.shape[1]
