"""Scalar functions of the hyperparameters, and the problem they are functions of."""

from ._grid import (
    CommonNoise,
    FixedNoise,
    GridEvaluation,
    GridProblem,
    NoiseByRow,
    NoisyMoments,
    Rows,
    check_rank,
    grid_marginal_likelihood,
    noise_jitter,
)

__all__ = [
    "CommonNoise",
    "FixedNoise",
    "GridEvaluation",
    "GridProblem",
    "NoiseByRow",
    "NoisyMoments",
    "Rows",
    "check_rank",
    "grid_marginal_likelihood",
    "noise_jitter",
]
