"""Bayesian regression with a prior precision for each weight, from square roots of moments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...linalg.solvers import cholesky_with_jitter

# The smallest noise variance, in units of the target's mean square: from the rows themselves, and
# from sums of products over blocks of rows, which keep half of the digits. With 1e-8 in place of
# the first, intervals for noise of 1e-5 are three times too wide.
_FLOOR, _FLOOR_OF_SUMS = 1e-10, 1e-6
# Largest rounding of Phi'Phi / noise, as a fraction of the smallest prior precision.
_ROUNDING = 1e-4


@dataclass(frozen=True, eq=False)
class Weights:
    """The posterior N(mean, covariance) of weights.

    Attributes
    ----------
    mean : Tensor of shape (r, t)
    covariance : Tensor of shape (r, r)
        Of each column of the mean.
    precision : Tensor of shape (r,)
        Prior precisions.
    noise : float
    residual : float
        Sum of squares of Y - Phi mean.
    evidence : float
        Log evidence in nats, summed over rows and targets.
    """

    mean: Float64[Tensor, "r t"]
    covariance: Float64[Tensor, "r r"]
    precision: Float64[Tensor, " r"]
    noise: float
    residual: float
    evidence: float


@dataclass(frozen=True, eq=False)
class Moments:
    """Phi'Phi = root'root, Phi'Y = root'target and |Y|^2 = |target|^2 + rest.

    Without noise, weights and evidence depend on digits of these sums of products that rounding
    has taken. The square roots keep twice as many.

    Attributes
    ----------
    root : Tensor of shape (q, m)
    target : Tensor of shape (q, t)
    rest : float
    gram : Tensor of shape (m, m)
        Phi'Phi.
    n : float
        Number of rows, or the sum of their counts.
    floor : float
        Smallest noise variance that these digits allow.
    """

    root: Float64[Tensor, "q m"]
    target: Float64[Tensor, "q t"]
    rest: float
    gram: Float64[Tensor, "m m"]
    n: float
    floor: float

    @classmethod
    def of(cls, blocks: Iterable[tuple[Tensor, Tensor, Any]], unit: float) -> Moments:
        """From the functions and the targets of some rows at a time.

        A row that stands for k equal rows is a row times the root of k.

        Parameters
        ----------
        blocks : iterable of (Tensor of shape (b, m), Tensor of shape (b, t), Tensor of shape (b,))
            The last has the counts of the rows.
        unit : float
            Mean square of the targets.
        """
        gram = projection = torch.zeros(())
        n, square, total = 0, 0.0, 0.0
        for phi, targets, counts in blocks:
            Y = targets.double()
            total += float(counts.sum())
            root = counts.to(Y).sqrt()[:, None]
            phi, Y = phi * root, Y * root
            gram, projection = gram.to(Y) + phi.T @ phi, projection.to(Y) + phi.T @ Y
            n, square = n + len(Y), square + float(Y.square().sum())
        m = len(gram)
        if n > len(phi):
            return cls.of_sums(gram, projection, square, total, unit)
        root, rest = phi, 0.0
        if n > m:
            R = torch.linalg.qr(torch.cat([phi, Y], 1), mode="r").R
            root, Y, rest = R[:m, :m], R[:m, m:], float(R[m:, m:].square().sum())
        # Zeros do not say how large other targets would be. Their intervals keep some width.
        floor = _FLOOR if square > 0 else _FLOOR_OF_SUMS
        return cls(root, Y, rest, gram, total, floor * unit)

    @classmethod
    def of_sums(
        cls,
        gram: Float64[Tensor, "m m"],
        projection: Float64[Tensor, "m t"],
        square: float,
        n: float,
        unit: float,
    ) -> Moments:
        """From Phi'Phi, Phi'Y, |Y|^2 and the number of rows."""
        L, _ = cholesky_with_jitter(gram)
        target = torch.linalg.solve_triangular(L, projection, upper=False)
        rest = max(square - float(target.square().sum()), 0.0)
        return cls(L.T, target, rest, gram, n, _FLOOR_OF_SUMS * unit)

    def weights(
        self, at: Int64[Tensor, " r"], precision: Float64[Tensor, " r"], noise: float
    ) -> Weights:
        """The posterior of the weights of some of the functions; O(q r^2).

        Parameters
        ----------
        at : Tensor of shape (r,)
            Numbers of the functions.
        precision : Tensor of shape (r,)
            Their prior precisions.
        noise : float
        """
        root, std, t = self.root[:, at], noise**0.5, self.target.shape[1]
        G = self.gram[at][:, at] / noise
        lost = torch.finfo(G.dtype).eps * float(G.diagonal().sum())
        if lost < _ROUNDING * float(precision.min()):
            U = cholesky_with_jitter(G + torch.diag(precision))[0].T
            b = root.T @ self.target / noise
            right = torch.linalg.solve_triangular(U.T, b, upper=False)
        else:
            top = torch.cat([root / std, self.target / std], 1)
            prior = torch.diag(precision.sqrt())
            bottom = torch.cat([prior, prior.new_zeros(len(at), t)], 1)
            R = torch.linalg.qr(torch.cat([top, bottom]), mode="r").R[: len(at)]
            U, right = R[:, : len(at)], R[:, len(at) :]
        inverse = torch.linalg.solve_triangular(U, torch.eye(len(at)).to(U), upper=True)
        mean = inverse @ right
        residual = float((self.target - root @ mean).square().sum()) + self.rest
        fit = residual / noise + float((precision[:, None] * mean.square()).sum())
        log_det = 2 * float(U.diagonal().abs().log().sum()) - float(precision.log().sum())
        rows = self.n * np.log(2 * np.pi * noise)
        evidence = -0.5 * (t * (log_det + rows) + fit)
        return Weights(mean, inverse @ inverse.T, precision, noise, residual, evidence)

    def alone(
        self, others: Int64[Tensor, " k"], at: Int64[Tensor, " r"], now: Weights
    ) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "k t"]]:
        """S_i = phi_i'C^-1 phi_i and Q_i = phi_i'C^-1 Y for functions outside the model; O(q r k).

        C is the covariance of Y under the model. In least squares with rows for the prior, S_i and
        Q_i are products of residuals, whose errors are of second order.
        """
        std = now.noise**0.5
        phi, root = self.root[:, others] / std, self.root[:, at] / std
        prior = now.precision.sqrt()[:, None]
        coef = now.covariance @ (root.T @ phi)
        # A refinement with residuals, because products with the covariance lose digits.
        coef += now.covariance @ (root.T @ (phi - root @ coef) - prior.square() * coef)
        left, below = phi - root @ coef, -prior * coef
        S = left.square().sum(0) + below.square().sum(0)
        Q = left.T @ (self.target / std - root @ now.mean) - below.T @ (prior * now.mean)
        smallest = 100 * torch.finfo(S.dtype).eps * phi.square().sum(0)
        return S.clamp_min(1e-300), torch.where((S > smallest)[:, None], Q, torch.zeros_like(Q))
