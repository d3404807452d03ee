"""Operators, preconditioners, solvers, truncated series and gradients: tensors in, tensors out."""
