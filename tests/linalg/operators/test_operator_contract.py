"""The table of operators; each row goes through the whole contract."""

import pytest
import torch
from contracts.operator_contract import SMALL_TILE, OperatorContract, OperatorProblem, OperatorRow
from oracles import DenseOperator

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator, SentOperator, Workspace


def dense(problem: OperatorProblem, dtype: torch.dtype) -> DenseOperator:
    parts = problem.H, problem.noise, problem.derivatives
    return DenseOperator(*(part.to(dtype) for part in parts))


def from_kernel(keep: bool):
    def make(problem: OperatorProblem, dtype: torch.dtype) -> KernelOperator:
        kernel = compile_kernel(problem.kernel, problem.X.shape[1])
        X, noise = problem.rows(dtype), problem.known_noise(dtype)
        return KernelOperator(kernel, problem.theta, X, noise, keep=keep, tile=SMALL_TILE)

    return make


def sent(problem: OperatorProblem, dtype: torch.dtype) -> KernelOperator:
    """The CPU stands for the device, to which only single precision is sent."""
    kernel = compile_kernel(problem.kernel, problem.X.shape[1])
    X, noise = problem.rows(dtype), problem.known_noise(dtype)
    made = SentOperator if dtype == torch.float32 else KernelOperator
    there = Workspace(torch.device("cpu"))
    return made(kernel, problem.theta, X, noise, workspace=there, tile=SMALL_TILE)


ROWS = [
    OperatorRow("dense", dense),
    OperatorRow("kept", from_kernel(True)),
    OperatorRow("tiled", from_kernel(False)),
    OperatorRow("sent", sent),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
class TestOperators(OperatorContract):
    pass
