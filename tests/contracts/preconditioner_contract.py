"""The contract of preconditioners.

A new one is one row in ``tests/preconditioners/test_preconditioner_contract.py``.
"""

from __future__ import annotations

import pytest
import torch
from oracles import Problem, generator, kernel_problem, normal
from sklearn.base import clone

from skscalablegp.solvers import CG, MaxEpochs, RelativeResidual, solve

BUILDS = [
    kernel_problem(),
    kernel_problem(heteroscedastic=True),
    kernel_problem(duplicates=True),
    kernel_problem(n=1, s=1),
    kernel_problem(n=2, s=1),
]


def dense(P, n: int, dtype=torch.float64) -> torch.Tensor:
    """P itself, from what it does."""
    return torch.linalg.inv(P.solve(torch.eye(n, dtype=dtype)))


class PreconditionerContract:
    """Inherit and parametrize ``make``: rank -> settings."""

    @pytest.mark.parametrize("problem", BUILDS, ids=lambda p: p.name)
    def test_solve_and_log_det_belong_to_one_matrix(self, make, problem):
        P = make(20).build(problem.operator(), generator())
        full = dense(P, len(problem.H))
        torch.testing.assert_close(full, full.T, rtol=1e-10, atol=1e-12)
        V = normal(len(full), 3)
        torch.testing.assert_close(P.solve(full @ V), V, rtol=1e-8, atol=1e-9)
        sign, log_det = torch.linalg.slogdet(full)
        assert sign == 1
        assert P.log_det() == pytest.approx(float(log_det), rel=1e-9, abs=1e-9)

    @pytest.mark.parametrize("problem", BUILDS, ids=lambda p: p.name)
    def test_full_rank_is_exact(self, make, problem):
        n = len(problem.H)
        P = make(n + 7).build(problem.operator(), generator())
        assert P.rank <= n
        torch.testing.assert_close(dense(P, n), problem.H, rtol=1e-8, atol=1e-8)
        exact = torch.linalg.solve(problem.H, problem.B)
        torch.testing.assert_close(P.solve(problem.B), exact, rtol=1e-6, atol=1e-6)

    def test_never_exceeds_the_matrix(self, make):
        problem = kernel_problem(noise=1e-3)
        P = make(15).build(problem.operator(), generator())
        gap = torch.linalg.eigvalsh(problem.H - P.lower * dense(P, len(problem.H)))
        assert float(gap[0]) > -1e-9

    def test_samples_have_the_right_covariance(self, make):
        problem = kernel_problem(n=12, heteroscedastic=True)
        P = make(5).build(problem.operator(), generator())
        samples = P.sample(20_000, generator(7))
        assert samples.shape == (12, 20_000)
        directions = normal(12, 6, seed=3)
        expected = (directions * (dense(P, 12) @ directions)).sum(0)
        squares = (directions.T @ samples).square()
        z = (squares.mean(1) - expected) / (squares.std(1) / 20_000**0.5)
        assert float(z.abs().max()) < 4
        means = samples.mean(1) / (samples.std(1) / 20_000**0.5)
        assert float(means.abs().max()) < 4

    def test_cg_takes_fewer_iterations_as_the_rank_grows(self, make):
        problem = kernel_problem(n=200, d=3, noise=1e-3)
        stopping = RelativeResidual(1e-6) | MaxEpochs(2000)
        plain = solve(problem.operator(), problem.B, CG(), stopping=stopping).n_iter
        counts = [plain]
        for rank in (20, 80, 200):
            solution = solve(problem.operator(), problem.B, CG(make(rank)), stopping=stopping)
            assert solution.converged
            counts.append(solution.n_iter)
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] <= 3 < plain

    def test_float32_inverse_stays_positive_at_strong_signal(self, make):
        # |L|^2 / noise is about 1e6 here: plain Woodbury leaves a few digits at most
        problem = kernel_problem(n=300, noise=1e-4)
        P = make(60).build(problem.operator(torch.float32), generator())
        inverse = P.solve(torch.eye(300, dtype=torch.float32)).double()
        scale = problem.noise.sqrt()
        values = torch.linalg.eigvalsh(scale[:, None] * (inverse + inverse.T) / 2 * scale)
        # Dense blocks have the rounding of their entries, here up to 1% of the noise.
        blocks = hasattr(P, "factors")
        rounding = 9 * torch.finfo(torch.float32).eps / 1e-4 if blocks else 1e-5
        assert float(values[0]) > -1e-6 and float(values[-1]) < 1 + rounding
        assert P.log_det() == pytest.approx(-float(torch.linalg.slogdet(inverse)[1]), rel=2e-2)

    def test_without_noise_there_is_a_floor(self, make):
        problem = kernel_problem(n=20, noise=0.0)
        P = make(5).build(problem.operator(), generator())
        assert (P.noise > problem.noise).all()
        V = normal(20, 2)
        assert P.solve(V).isfinite().all()
        # Beside this floor, a preconditioner may add the mean of what its low-rank part leaves out.
        low_rank = dense(P, 20) - torch.diag(P.noise)
        rest = (problem.H - low_rank).diagonal().mean()
        floor = min(float(P.noise.max()), float((P.noise - rest).abs().max()))
        assert floor / torch.finfo(torch.float64).eps < 100

    @pytest.mark.parametrize("noise", [1e-2, 1e-7])
    def test_a_bound_that_is_known_holds(self, make, noise):
        """None is known where single precision cannot hold the noise: P then has more of it."""
        problem = kernel_problem(n=80, noise=noise, heteroscedastic=True)
        for dtype in (torch.float64, torch.float32):
            P = make(8).build(problem.operator(dtype), generator())
            full = dense(P, 80, dtype).double()
            smallest = float(torch.linalg.eigvals(torch.linalg.solve(full, problem.H)).real.min())
            if dtype == torch.float64 or noise == 1e-2:
                # The solve divides rounding of a norm of about 80 by the noise, and adds it up.
                rounding = 10 * 80 * torch.finfo(dtype).eps / float(problem.noise.min())
                # One, or less where P has more on its diagonal, or in blocks, than the noise.
                assert 0 < P.lower <= 1 + 1e-5
                if not hasattr(P, "factors"):
                    exact = float((problem.noise / P.noise).min())
                    assert P.lower == pytest.approx(exact, rel=1e-5)
                assert smallest > P.lower - rounding
            else:
                assert P.lower is None and smallest < 0.1
            assert P.build(problem.operator()).lower is None  # it may be another operator

    def test_counts_its_rows(self, make):
        problem = kernel_problem(n=100, d=4)
        operator = problem.operator()
        P = make(10).build(operator, generator())
        assert P.rank == 10
        assert 0.1 <= operator.epochs < 0.3

    def test_builds_repeat(self, make):
        problem = kernel_problem()
        V = normal(60, 2)
        first, second = (make(8).build(problem.operator(), generator(3)) for _ in range(2))
        assert torch.equal(first.solve(V), second.solve(V))
        first, second = (make(8).build(problem.operator()) for _ in range(2))
        assert torch.equal(first.solve(V), second.solve(V))

    def test_a_matrix_that_is_not_finite_is_left_to_the_solver(self, make):
        problem = kernel_problem()
        bad = Problem("nan", problem.H * float("nan"), problem.noise, problem.B)
        assert make(5).build(bad.operator(), generator()).rank == 0

    @pytest.mark.parametrize("rank", [0, -3, 2.5, "many", True])
    def test_wrong_ranks_say_so(self, make, rank):
        config = make(rank)
        with pytest.raises(ValueError, match=r"rank must be .*100.*got"):
            config.build(kernel_problem(n=5).operator(), generator())

    def test_settings_are_kept_and_cloned(self, make):
        config = make(13)
        assert config.get_params()["rank"] == 13
        assert clone(config).set_params(rank=4).rank == 4
        outer = CG(preconditioner=config).set_params(preconditioner__rank=6)
        assert outer.preconditioner.rank == 6
