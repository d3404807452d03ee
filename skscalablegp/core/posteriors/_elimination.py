"""Regressions on small sets of rows by operations that can be traced and exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ._modules import KernelModule

scan: Callable[..., Any] | None = None
if torch.__version__ >= "2.13":
    # Earlier versions do not write it into ONNX files.
    from torch._higher_order_ops import scan

# Pivots are at least this share of the prior variance, where copies of rows make a matrix singular.
_SMALLEST_PIVOT = 1e-12
# Equations of a step of the loop in ONNX files. Their conversion takes longer with larger blocks.
_BLOCK = 8


def regressed(
    kernel: KernelModule,
    X: Float[Tensor, "b d"],
    Z: Float[Tensor, "b m d"],
    noise: Float[Tensor, "b m"],
    k: Float[Tensor, "b m 1"],
    Y: Float[Tensor, "b m t"],
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"], Float[Tensor, "b m s"]]:
    """Means and variances of f at rows X, each given noisy observations Y of f at rows of its own.

    Parameters
    ----------
    kernel : KernelModule
    X : Tensor of shape (b, d)
    Z, noise, Y : Tensor of shape (b, m, d), (b, m) and (b, m, t)
        The rows that each row is given, their noise variances and their targets.
    k : Tensor of shape (b, m, 1)
        Their covariances with the row.

    Returns
    -------
    mean, variance : Tensor of shape (b, t) and (b,)
    half : Tensor of shape (b, m, 1 + t)
        L^-1 k and L^-1 Y for the factor L of the observations' covariance.
    """
    prior = kernel.diag(X)
    H = kernel.cross(Z, Z) + torch.diag_embed(noise)
    half = half_solved(H, torch.cat([k, Y], 2), prior)
    mean = (half[:, :, :1] * half[:, :, 1:]).sum(1)
    return mean, (prior - half[:, :, 0].square().sum(1)).clamp_min(0), half


def half_solved(
    H: Float[Tensor, "b m m"], B: Float[Tensor, "b m s"], prior: Float[Tensor, " b"]
) -> Float[Tensor, "b m s"]:
    """L^-1 B for H = L L'.

    Parameters
    ----------
    H : Tensor of shape (b, m, m)
        Symmetric and positive definite.
    B : Tensor of shape (b, m, s)
    prior : Tensor of shape (b,)
        The prior variance, in proportion to which tiny pivots are raised in an export.
    """
    if torch.onnx.is_in_onnx_export() and scan is not None and H.shape[1] > _BLOCK:
        return _eliminated_in_blocks(H, B, prior)
    if not torch.compiler.is_compiling() and not torch.onnx.is_in_onnx_export():
        L, info = torch.linalg.cholesky_ex(H)
        if not bool(info.any()):
            return torch.linalg.solve_triangular(L, B, upper=False)
    return _eliminated(H, B, prior)


def _eliminated(H: Tensor, B: Tensor, prior: Tensor) -> Float[Tensor, "b m s"]:
    """The same by elimination in elementwise operations, which every runtime has.

    Each step takes one equation out of [H | B]. Its row, divided by the root of its pivot, is a row
    of [L' | L^-1 B]. m^3 / 3 operations for each row.
    """
    return _first_rows(torch.cat([H, B], 2), H.shape[1], _SMALLEST_PIVOT * prior)


def _first_rows(M: Tensor, m: int, least: Tensor) -> Float[Tensor, "b m k"]:
    """The rows of L^-1 M for the factor L of the first m columns of M (b, m, m + k)."""
    least, rows = least[:, None, None], []
    for step in range(m):
        row, column = M[:, :1], M[:, :, :1]
        pivot = torch.maximum(row[:, :, :1], least)
        rows.append(row[:, :, m - step :] / pivot.sqrt())
        M = M[:, 1:, 1:] - column[:, 1:] * (row[:, :, 1:] / pivot)
    return torch.cat(rows, 1)


def _eliminated_in_blocks(
    H: Tensor, B: Tensor, prior: Tensor, repeated: Callable[..., Any] | None = scan
) -> Float[Tensor, "b m s"]:
    """The same by one loop over blocks of equations, whose size does not grow with m.

    A step of the loop takes a block of equations out of [H | B], by single steps inside the block
    and a product outside, and moves the rest up, so that every step has the same shapes. There are
    2 m^3 operations for each row, most of them in products.

    Parameters
    ----------
    H, B, prior
        As in `_eliminated`.
    repeated : callable
        ``repeated(step, state, counter)`` runs the loop.
    """
    m, over = H.shape[1], -H.shape[1] % _BLOCK
    M = torch.cat([pad(H, (0, over, 0, over)), pad(B, (0, 0, 0, over))], 2)
    least, rest = _SMALLEST_PIVOT * prior, m + over - _BLOCK

    def step(M: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        rows = _first_rows(M[:, :_BLOCK], _BLOCK, least)
        left = M[:, _BLOCK:, _BLOCK:] - rows[:, :, :rest].mT @ rows
        moved = torch.cat([pad(left[:, :, :rest], (0, _BLOCK)), left[:, :, rest:]], 2)
        return pad(moved, (0, 0, 0, _BLOCK)), rows[:, :, rest:].clone()

    assert repeated is not None
    counter = torch.zeros((m + over) // _BLOCK, 1, dtype=H.dtype)
    _, blocks = repeated(step, M, counter)
    return blocks.transpose(0, 1).flatten(1, 2)[:, :m]
