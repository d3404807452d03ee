"""Truncation distributions, and the unbiasedness of weighted series by z-scores."""

import math
import re

import numpy as np
import pytest
import torch
from oracles import DenseOperator, generator, kernel_problem, normal, z_score
from sklearn.base import clone

from skscalablegp.linalg.truncation import (
    RouletteSum,
    Truncation,
    WeightedColumns,
    cg_stream,
    resolve_truncation,
    roulette_cg,
    roulette_weights,
    single_sample,
)
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.truncation import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
)

N_DRAWS = 10_000
DISTRIBUTIONS = [
    ExponentialTruncation(0.1, min_iter=3),
    ExponentialTruncation(0.05, expected_iter=20),
    ExponentialTruncation(3.0, min_iter=1),
    GeometricTruncation(0.2, min_iter=2, max_iter=30),
    ReciprocalTruncation(),
    ReciprocalTruncation(min_iter=4, max_iter=17),
    FixedTruncation(7),
]


# ---------------------------------------------------------------- distributions


@pytest.mark.parametrize("settings", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("n", [50, 1000])
class TestDistribution:
    def test_pmf_and_survival_agree(self, settings, n):
        bound = settings.on(n)
        j = torch.arange(0, n + 3)
        pmf, survival = bound.pmf(j), bound.survival(j)
        assert float(pmf.sum()) == pytest.approx(1, rel=1e-12)
        torch.testing.assert_close(survival, pmf.flip(0).cumsum(0).flip(0), rtol=1e-9, atol=0)
        assert (survival[: bound.low + 1] == 1).all()
        assert (survival[bound.high + 1 :] == 0).all() and (pmf[bound.high + 1 :] == 0).all()

    def test_moments(self, settings, n):
        bound = settings.on(n)
        j, p = np.arange(n + 1), bound.pmf(torch.arange(n + 1)).numpy()
        assert bound.mean == pytest.approx((j * p).sum())

    def test_draws_follow_it(self, settings, n):
        bound = settings.on(n)
        draws = bound.sample(N_DRAWS, generator(1))
        assert bound.low <= int(draws.min()) and int(draws.max()) <= bound.high
        assert torch.equal(draws, bound.sample(N_DRAWS, generator(1)))
        if bound.low == bound.high:
            assert (draws == bound.low).all()
            return
        assert abs(z_score(draws.double(), bound.mean)) < 4
        middle = max(int(bound.mean), bound.low + 1)
        assert abs(z_score((draws >= middle).double(), float(bound.survival(middle)))) < 4

    def test_weights_are_one_up_to_the_support(self, settings, n):
        bound = settings.on(n)
        draws = bound.sample(20, generator())
        weights = roulette_weights(bound, draws)
        assert (weights[:, : bound.low] == 1).all()
        assert (weights >= 0).all() and weights.shape == (20, int(draws.max()))
        assert ((weights > 0).sum(1) == draws).all()

    def test_is_settings(self, settings, n):
        assert str(clone(settings)) == str(settings)
        assert str(clone(settings).get_params()) == str(settings.get_params())


def test_survival_keeps_its_digits_in_the_far_tail():
    bound = ExponentialTruncation(0.5, min_iter=1).on(2000)
    j = torch.tensor([100, 1000])
    expected = torch.exp(-0.5 * (j.double() - 1))
    torch.testing.assert_close(bound.survival(j), expected, rtol=1e-12, atol=0)


def test_paper_values_of_mean_and_deviation():
    for rate, spread in ((0.05, 20), (0.1, 10)):
        bound = ExponentialTruncation(rate, min_iter=1).on(5000)
        assert bound.mean - 1 == pytest.approx(spread, rel=0.06)
        j, p = torch.arange(bound.low, bound.high + 1), bound.probabilities
        deviation = float(((j - bound.mean).square() * p).sum().sqrt())
        assert deviation == pytest.approx(spread, rel=0.06)


@pytest.mark.parametrize("mean", [20, 33.3, 40, 100])
def test_expected_iterations_are_met(mean):
    assert ExponentialTruncation(expected_iter=mean).on(1500).mean == pytest.approx(mean, abs=0.6)


@pytest.mark.parametrize("n", [1, 2, 7, 20, 21])
def test_defaults_adapt_to_short_series(n):
    for settings in (
        ExponentialTruncation(),
        GeometricTruncation(),
        ReciprocalTruncation(),
        FixedTruncation(),
    ):
        bound = settings.on(n)
        assert 1 <= bound.low <= bound.high <= n


@pytest.mark.parametrize(
    "settings, message",
    [
        (ExponentialTruncation(0.0), r"rate must be .* 0\.05; got 0\.0"),
        (ExponentialTruncation(-1), "rate must be a positive"),
        (ExponentialTruncation(math.inf), "rate"),
        (ExponentialTruncation(math.nan), "rate"),
        (ExponentialTruncation("fast"), "rate"),
        (GeometricTruncation(0), "probability"),
        (GeometricTruncation(1.0), "probability must be a positive number below 1"),
        (ExponentialTruncation(min_iter=51), "min_iter=51 .* at most min_iter=50"),
        (ExponentialTruncation(min_iter=0), "min_iter must be an integer of at least 1"),
        (ReciprocalTruncation(min_iter=60), "at most min_iter=50"),
        (ReciprocalTruncation(max_iter=0), "max_iter must be an integer of at least 1"),
        (ReciprocalTruncation(max_iter=math.inf), r"max_iter=inf .* infinite.*None.*50"),
        (ReciprocalTruncation(min_iter=9, max_iter=8), "at most min_iter=8"),
        (
            ExponentialTruncation(expected_iter=60),
            "expected_iter=60 must lie between 1 and the number of terms, 50",
        ),
        (ExponentialTruncation(expected_iter="a"), "expected_iter must be a number.*got 'a'"),
        (ExponentialTruncation(expected_iter=3), "expected_iter=3 .* use rate=.* expected_iter="),
        (ExponentialTruncation(expected_iter=30, min_iter=3), "min_iter='auto'"),
        (FixedTruncation(0), "n_iter must be an integer of at least 1"),
    ],
    ids=str,
)
def test_wrong_settings_name_a_value_that_works(settings, message):
    with pytest.raises(ValueError, match=message):
        settings.on(50)


def test_the_rate_that_an_error_names_works():
    settings = ExponentialTruncation(expected_iter=3)
    with pytest.raises(ValueError) as caught:
        settings.on(50)
    rate = float(re.search(r"rate=([\d.]+)", str(caught.value))[1])
    assert settings.set_params(rate=rate).on(50).mean == pytest.approx(3, abs=0.5)


# ---------------------------------------------------------------- any stream of increments


def terms(n=40):
    return [torch.tensor([0.9**j, -(0.8**j)], dtype=torch.float64) for j in range(n)]


def test_russian_roulette_of_any_series():
    series = terms()
    bound = ExponentialTruncation(0.2, min_iter=2).on(len(series))
    draws = bound.sample(N_DRAWS, generator())
    total = RouletteSum(roulette_weights(bound, draws))
    for term in series:
        total.add(term[:, None])
    for component, expected in zip(total.value, sum(series), strict=True):
        assert abs(z_score(component, float(expected))) < 4


def test_the_single_sample_estimator_of_any_series():
    series = terms()
    bound = ReciprocalTruncation().on(len(series), start=4)
    assert bound.low == 4
    draws = bound.sample(N_DRAWS, generator())
    base = sum(series[:3])
    values = torch.stack(
        [single_sample(base, lambda j: series[j - 1], bound, int(draw)) for draw in draws]
    )
    for component, expected in zip(values.T, sum(series), strict=True):
        assert abs(z_score(component, float(expected))) < 4


def test_a_sum_that_is_finished_takes_no_more():
    bound = FixedTruncation(3).on(40)
    total = RouletteSum(roulette_weights(bound, bound.sample(1, generator())))
    for term in terms():
        total.add(term)
    assert total.finished
    torch.testing.assert_close(total.value, sum(terms()[:3]))


# ---------------------------------------------------------------- conjugate gradients


def ill_conditioned():
    return kernel_problem(n=40, s=3, noise=1e-2)


def preconditioner(name, problem):
    return None if name == "none" else PivotedCholesky(rank=6).build(problem.operator())


@pytest.mark.parametrize("with_p", ["none", "pivoted_cholesky"])
class TestConjugateGradients:
    def solves(self, problem, settings, with_p, n_draws=N_DRAWS):
        """n_draws estimates of H^-1 b, (n, n_draws), from one run."""
        bound = settings.on(len(problem.H))
        weights = roulette_weights(bound, bound.sample(n_draws, generator(3)))
        groups = [WeightedColumns(slice(0, 1), weights)]
        P = preconditioner(with_p, problem)
        return roulette_cg(problem.operator(), problem.B[:, :1], groups, preconditioner=P)

    def test_solutions_are_unbiased(self, with_p):
        problem = ill_conditioned()
        exact = torch.linalg.solve(problem.H, problem.B[:, 0])
        result = self.solves(problem, ExponentialTruncation(0.15, min_iter=3), with_p)
        (values,) = result.values
        assert values.shape == (40, N_DRAWS)
        worst = max(abs(z_score(row, float(x))) for row, x in zip(values, exact, strict=True))
        assert worst < 4
        assert result.orthogonality_loss < 1 and not result.broken

    def test_plain_truncation_is_biased_and_shrinks_the_quadratic_term(self, with_p):
        problem = ill_conditioned()
        b = problem.B[:, :1]
        (values,) = self.solves(problem, FixedTruncation(4), with_p, 2).values
        exact = float((b * torch.linalg.solve(problem.H, b)).sum())
        truncated = b.T @ values
        assert (truncated < exact * (1 - 1e-3)).all()

    def test_a_converged_run_gives_the_plain_solution(self, with_p):
        n = 30
        H = torch.eye(n, dtype=torch.float64) + 0.1 * torch.ones(n, n, dtype=torch.float64)
        operator, b = DenseOperator(H, torch.ones(n, dtype=torch.float64)), normal(n, 2, seed=1)
        bound = ExponentialTruncation(0.05, min_iter=8).on(n)
        weights = roulette_weights(bound, torch.tensor([25]))
        P = None if with_p == "none" else PivotedCholesky(rank=1).build(operator)
        result = roulette_cg(operator, b, [WeightedColumns(slice(0, 2), weights)], preconditioner=P)
        assert result.n_iter < 8
        torch.testing.assert_close(result.values[0], torch.linalg.solve(H, b))


def test_columns_leave_the_run_when_their_sums_are_finished():
    problem = ill_conditioned()
    bound = ExponentialTruncation(0.15, min_iter=3).on(40)
    weights = [roulette_weights(bound, torch.tensor([j])) for j in (12, 9, 5)]
    columns = [slice(0, 1), slice(0, 1), slice(1, 3)]
    together = roulette_cg(
        problem.operator(),
        problem.B,
        [WeightedColumns(c, w) for c, w in zip(columns, weights, strict=True)],
    )
    assert together.n_iter == 12
    for value, c, w in zip(together.values, columns, weights, strict=True):
        alone = roulette_cg(problem.operator(), problem.B, [WeightedColumns(c, w)])
        torch.testing.assert_close(value, alone.values[0], rtol=1e-5, atol=1e-6)


def test_single_precision_loses_orthogonality_and_reorthogonalisation_restores_it():
    problem = kernel_problem(n=80, s=2, noise=1e-5)
    bound = FixedTruncation(60).on(80)
    groups = [WeightedColumns(slice(0, 2), roulette_weights(bound, torch.tensor([60])))]

    def loss(**params):
        operator = problem.operator(torch.float32)
        return roulette_cg(operator, problem.B.float(), groups, **params).orthogonality_loss

    assert loss() > 0.1
    assert loss(reorthogonalize=True) < 1e-5
    P = PivotedCholesky(rank=10).build(problem.operator(torch.float32))
    assert loss(preconditioner=P, reorthogonalize=True) < 1e-5


def test_the_stream_sums_to_the_solution():
    problem = ill_conditioned()
    total = sum(
        state.direction * state.gamma
        for state in cg_stream(problem.operator(), problem.B, 40, reorthogonalize=True)
    )
    torch.testing.assert_close(total, torch.linalg.solve(problem.H, problem.B))


def test_a_truncation_is_plain_data():
    bound = Truncation(1, 2, torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, 0.5]).double())
    assert bound.mean == 1.5 and float(bound.pmf(2)) == 0.5


def test_names_stand_for_distributions():
    for name in ("exponential", "geometric", "reciprocal", "fixed"):
        assert name in type(resolve_truncation(name)).__name__.lower()
    own = FixedTruncation(7)
    assert resolve_truncation(own) is own
    with pytest.raises(ValueError, match="Unknown truncation 'poisson': use .*'exponential'"):
        resolve_truncation("poisson")


def test_laws_are_those_of_their_names():
    """Ratios of neighbouring probabilities, from the formulas on paper."""
    j = torch.arange(2, 40)
    reciprocal = ReciprocalTruncation().on(50)
    torch.testing.assert_close(reciprocal.pmf(j) / reciprocal.pmf(j + 1), (j + 1.0) / j.double())
    geometric = GeometricTruncation(0.2, min_iter=1).on(50)
    torch.testing.assert_close(
        geometric.pmf(j + 1) / geometric.pmf(j), torch.full((38,), 0.8).double()
    )
    exponential = ExponentialTruncation(0.2, min_iter=1).on(50)
    ratio = exponential.pmf(j + 1) / exponential.pmf(j)
    torch.testing.assert_close(ratio, torch.full((38,), np.exp(-0.2)).double())


def test_stratified_draws_take_one_from_each_part_and_follow_the_law():
    bound, g = ExponentialTruncation(0.1, min_iter=5).on(200), generator(3)
    draws = torch.stack([bound.sample(4, g, stratified=True) for _ in range(3000)])
    cdf = 1 - bound.survival(torch.arange(bound.low, bound.high + 2))
    for part, column in enumerate(draws.T):
        below, above = cdf[column - bound.low], cdf[column - bound.low + 1]
        assert (above > part / 4 - 1e-12).all() and (below < (part + 1) / 4 + 1e-12).all()
    assert abs(z_score(draws.double().mean(1), bound.mean)) < 4


def test_only_laws_that_leave_their_beginning_open_adapt():
    assert ExponentialTruncation().adapts and ReciprocalTruncation().adapts
    for settings in (
        ExponentialTruncation(min_iter=20),
        ExponentialTruncation(expected_iter=40),
        FixedTruncation(),
    ):
        assert not settings.adapts
    assert ExponentialTruncation().on(500, 90).low == 90
