"""Adam on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._moving import captured, restored


class TensorAdam:
    """Adam's steps on groups of tensors, from the gradients that the tensors hold.

    If all tensors have gradients at every step, the steps are those of `torch.optim.Adam`. That
    class imports compilers when a process first uses it, which takes more than a second and thus
    longer than a small fit.

    Parameters
    ----------
    groups : sequence of (sequence of Tensor, float)
        Tensors that `step` changes in place, each group with its learning rate.
    betas : tuple of float, default=(0.9, 0.999)
        Weights of the past in the running means of gradients and of their squares.

    Notes
    -----
    Kingma and Ba (2015), algorithm 1, with its epsilon of 1e-8.
    """

    moving = ("_n_steps", "_moments")

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[Tensor], float]],
        betas: tuple[float, float] = (0.9, 0.999),
    ):
        self._betas, self._n_steps = betas, 0
        self._groups = [
            ([(x, torch.zeros_like(x), torch.zeros_like(x)) for x in tensors], rate)
            for tensors, rate in groups
        ]
        self._moments = [moment for moved, _ in self._groups for _, *two in moved for moment in two]

    def zero_grad(self) -> None:
        """Delete the gradients."""
        for moved, _ in self._groups:
            for x, _, _ in moved:
                x.grad = None

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """One step, whose learning rates are multiplied by `factor`."""
        self._n_steps += 1
        first, second = (1 - beta**self._n_steps for beta in self._betas)
        for moved, rate in self._groups:
            for x, mean, square in moved:
                if x.grad is None:
                    continue
                mean.lerp_(x.grad, 1 - self._betas[0])
                square.mul_(self._betas[1]).addcmul_(x.grad, x.grad, value=1 - self._betas[1])
                spread = (square.sqrt() / second**0.5).add_(1e-8)
                x.addcdiv_(mean, spread, value=-rate * factor / first)


class AdamOfGroups:
    """`TensorAdam` with the part of the interface of `torch.optim.Adam` that batches need.

    Parameters
    ----------
    groups : list of dict
        Each with its tensors ("params") and their learning rate ("lr"), which may change.
    """

    def __init__(self, groups: list[dict[str, Any]]):
        self.param_groups = groups
        self._each = [TensorAdam([(group["params"], 1.0)]) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """Moments and rates, as values without classes."""
        rates = [float(group["lr"]) for group in self.param_groups]
        return {"each": captured(self._each), "rates": rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a `state_dict`."""
        restored(self._each, captured(state["each"]))
        for group, rate in zip(self.param_groups, state["rates"], strict=True):
            group["lr"] = rate

    def zero_grad(self) -> None:
        """Delete the gradients."""
        for adam in self._each:
            adam.zero_grad()

    def step(self) -> None:
        """One step of each group at its present rate."""
        for adam, group in zip(self._each, self.param_groups, strict=True):
            adam.step(group["lr"])
