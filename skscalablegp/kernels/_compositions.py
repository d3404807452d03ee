"""Sums, products and powers of kernels."""

from __future__ import annotations

import math

from sklearn.gaussian_process import kernels as sk

from ._nodes import PowerNode, ProductNode, SumNode
from ._registry import Layout, register_kernel


def _build_power(kernel: sk.Exponentiation, layout: Layout) -> PowerNode:
    if not 0 < kernel.exponent < math.inf:
        raise ValueError(f"Exponentiation needs a finite exponent > 0, got {kernel.exponent}.")
    return PowerNode(layout.build(kernel.kernel), kernel.exponent)


register_kernel(sk.Sum, lambda k, layout: SumNode(layout.build(k.k1), layout.build(k.k2)))
register_kernel(sk.Product, lambda k, layout: ProductNode(layout.build(k.k1), layout.build(k.k2)))
register_kernel(sk.Exponentiation, _build_power)
