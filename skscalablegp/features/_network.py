"""Neural networks as feature maps: pure functions of a list of tensors, row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
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

# Rows that a new network is tried on.
_TRIAL_ROWS = 8


class Network(ABC):
    """A map x -> z whose parameters are an argument; an instance never changes.

    Attributes
    ----------
    n_features_in : int
        Columns of the rows that it takes.
    n_features : int
        Columns of what it makes of them.
    n_trainable : int
        How many of the tensors, from the first, are to be trained; the others stay.
    """

    n_features_in: int
    n_features: int
    n_trainable: int

    @abstractmethod
    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Starting values, drawn from the generator alone, on the CPU."""

    @abstractmethod
    def __call__(self, params: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        """The features of rows, differentiable in the parameters and in X."""


@dataclass(frozen=True)
class DenseNetwork(Network):
    """Fully connected layers, an activation after each; no layers are the identity.

    Attributes
    ----------
    widths : tuple of int
        Columns of the rows, then of each layer.
    activation : str
        A key of `ACTIVATIONS`.
    linear_end : bool
        Whether the last layer goes without.
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


class _Copies:
    """Makes copies of a module that the user has given, on the CPU; that one is never trained."""

    def __init__(self, module: torch.nn.Module):
        self.module = deepcopy(module).cpu()

    def __call__(self, n_columns: int) -> torch.nn.Module:
        return deepcopy(self.module)


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """Any `torch.nn.Module`, its tensors taken out of it.

    Attributes
    ----------
    factory : callable
        ``factory(n_features_in)`` returns a new module; it is called under a forked seed, so that
        random initial weights follow the generator. It is called again where a pickled model is
        used, and must then make a module of the same shapes.
    n_features_in, n_features, n_trainable : int
        As in `Network`; see `make_network`, which finds the last two.
    """

    factory: Callable[[int], torch.nn.Module]
    n_features_in: int
    n_features: int = 0
    n_trainable: int = 0

    def __post_init__(self):
        # Not a field: neither a record nor a pickle of the network holds the module.
        object.__setattr__(self, "_module", [])

    def make(self, seed: int = 0) -> torch.nn.Module:
        """A new module; the global seed is as before afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # not the GPUs', which nothing restores
            module = self.factory(self.n_features_in)
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                "feature_extractor must return a torch.nn.Module for a number of columns, but "
                f"{self.factory} returned {type(module).__name__} for {self.n_features_in}."
            )
        return module

    @staticmethod
    def _tensors(module: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What is trained, and what stays (buffers and frozen parameters), by name."""
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
        """Whatever the module makes of X."""
        if not self._module:
            # Only the names and the wiring are used; its own tensors are replaced in every call.
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
    """The network that an estimator's parameters describe.

    Parameters
    ----------
    n_columns : int
        Columns of X.
    feature_extractor : int, sequence of int, callable, torch.nn.Module or None, \
            default=(128, 128)
        Widths of fully connected layers; a function that makes a module for so many columns; or a
        module, of which a copy is trained, from the weights that it has. () and None are the
        identity.
    activation : str, default="relu"
        After each layer that is given by its width; a key of `ACTIVATIONS`.
    linear_end : bool, default=False
        Whether the last of such layers goes without.

    Returns
    -------
    Network

    Raises
    ------
    TypeError
        For a function that returns something else.
    ValueError
        For widths that are not positive whole numbers, an unknown activation, or a module whose
        output depends on the other rows of a batch, is random, has the wrong shape or is NaN.
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
    """Refuse features that are not finite, before they spoil anything.

    Raises
    ------
    ValueError
        With how many are not.
    """
    bad = int((~torch.isfinite(phi)).any(1).sum())
    if bad:
        raise ValueError(
            f"{what} returned NaN or infinity for {bad} of {len(phi)} rows. Check its layers "
            "(logarithms, divisions, very large initial weights) on standardised rows."
        )


def network_to_numpy(params: Sequence[Tensor]) -> list[np.ndarray]:
    """Trained tensors as arrays, for fitted state."""
    return [p.detach().cpu().numpy().copy() for p in params]


def network_from_numpy(
    arrays: Sequence[np.ndarray], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """What `network_to_numpy` was given, on the CPU."""
    return [_cast(torch.tensor(a), dtype) for a in arrays]


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _widths(sizes: Any) -> tuple[int, ...]:
    widths = np.atleast_1d(np.asarray(sizes))
    if not widths.size:
        return ()
    if widths.ndim != 1 or widths.dtype.kind not in "iu" or widths.min() < 1:
        raise ValueError(
            "feature_extractor must be positive whole numbers, such as (128, 128), a function that "
            f"makes a torch.nn.Module for a number of columns, or a module; got {sizes!r}."
        )
    return tuple(int(width) for width in widths)


def _activation(name: Any) -> str:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(repr(key) for key in ACTIVATIONS)
        raise ValueError(f"activation={name!r} is unknown: use one of {known}.")
    return name


def _try_module(network: ModuleNetwork) -> int:
    """The width of a module's output, after a look at what it does with a few rows.

    New modules are in training mode, where batch norm and dropout show what they are; after
    ``module.eval()`` both are functions of a row.
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
            alone = None  # batch norm refuses single rows
    if not torch.allclose(Z, again):
        raise ValueError(
            "The network returned different features for the same rows: leave out random layers "
            "such as Dropout, and layers that keep statistics of what they saw (batch norm)."
        )
    if alone is None or alone.shape != Z.shape or not torch.allclose(Z, alone, rtol=1e-6):
        raise ValueError(
            "The network's features of a row depend on the other rows of its batch, so that no "
            "kernel is defined: leave out batch norm, or use LayerNorm, which looks at one row."
        )
    return Z.shape[1]
