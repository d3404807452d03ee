"""The algebra of stopping rules."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skscalablegp.linalg.solvers import Progress
from skscalablegp.solvers import End, MaxEpochs, MaxIterations, MaxSeconds, RelativeResidual

LEAVES = st.tuples(
    st.sampled_from(["max", "mean", "epochs", "iterations", "seconds"]), st.integers(0, 4)
)
JOINS = st.tuples(st.sampled_from(["|", "&"]), LEAVES, LEAVES)
SPECS = st.one_of(LEAVES, JOINS, st.tuples(st.sampled_from(["|", "&"]), JOINS, JOINS))
PROGRESS = st.tuples(
    st.lists(st.floats(0, 2), min_size=1, max_size=4),
    st.integers(0, 5),
    st.floats(0, 5),
    st.floats(0, 5),
)
MAKERS = {
    "max": lambda k: RelativeResidual(10.0**-k),
    "mean": lambda k: RelativeResidual(0.2 * k, [0], "mean"),
    "epochs": MaxEpochs,
    "iterations": MaxIterations,
    "seconds": MaxSeconds,
}


def rule_of(spec):
    """The rule that a nested tuple describes."""
    if spec[0] == "|":
        return rule_of(spec[1]) | rule_of(spec[2])
    if spec[0] == "&":
        return rule_of(spec[1]) & rule_of(spec[2])
    return MAKERS[spec[0]](spec[1])


def rules_and_progress(n_rules):
    """Draw plain data and hand rules over: shape checks draw random numbers of their own."""

    def decorate(test):
        @given(st.tuples(*[SPECS] * n_rules), PROGRESS)
        def checked(specs, numbers):
            norms, *rest = numbers
            progress = Progress(torch.tensor(norms, dtype=torch.float64), *rest)
            test(*map(rule_of, specs), progress)

        checked.__name__ = test.__name__
        return checked

    return decorate


def verdict(rule, progress):
    """Whether it stops, and whether that is a success."""
    status = rule.check(progress)
    return status is not None, status is End.CONVERGED


@rules_and_progress(2)
def test_either_order_gives_the_same_verdict(a, b, progress):
    assert verdict(a | b, progress) == verdict(b | a, progress)
    assert verdict(a & b, progress) == verdict(b & a, progress)


@rules_and_progress(3)
def test_brackets_do_not_matter(a, b, c, progress):
    assert ((a | b) | c).check(progress) == (a | (b | c)).check(progress)
    assert ((a & b) & c).check(progress) == (a & (b & c)).check(progress)


@rules_and_progress(3)
def test_stopping_distributes(a, b, c, progress):
    left, right = a & (b | c), (a & b) | (a & c)
    assert verdict(left, progress)[0] == verdict(right, progress)[0]


@rules_and_progress(2)
def test_any_and_all_mean_what_they_say(a, b, progress):
    stops_a, stops_b = verdict(a, progress)[0], verdict(b, progress)[0]
    assert verdict(a | b, progress)[0] == (stops_a or stops_b)
    assert verdict(a & b, progress)[0] == (stops_a and stops_b)
    assert (a | a).check(progress) == (a & a).check(progress) == a.check(progress)


@rules_and_progress(1)
def test_more_progress_never_unstops(rule, progress):
    further = Progress(
        progress.residual_norms / 2,
        progress.iteration + 1,
        progress.epochs + 1,
        progress.seconds + 1,
    )
    if verdict(rule, progress)[0]:
        assert verdict(rule, further)[0]


def test_columns_and_reductions():
    progress = Progress(torch.tensor([0.005, 0.001, 0.015], dtype=torch.float64))
    assert RelativeResidual(0.01, 0).check(progress) is End.CONVERGED
    assert RelativeResidual(0.01, slice(1, None)).check(progress) is None
    assert RelativeResidual(0.01, slice(1, None), "mean").check(progress) is End.CONVERGED
    assert RelativeResidual(0.01, (0, 1)).check(progress) is End.CONVERGED
    assert RelativeResidual(0.01).check(progress) is None
    assert RelativeResidual(0.01, slice(3, None), "mean").check(progress) is End.CONVERGED
    both = RelativeResidual(0.01, 0) & RelativeResidual(0.01, slice(1, None), "mean")
    assert (both | MaxEpochs(10)).check(progress) is End.CONVERGED


def test_no_step_begins_that_would_end_late():
    rule, norms = MaxSeconds(5.0), torch.ones(1)
    assert rule.check(Progress(norms, 1, seconds=4.0, step_seconds=1.0)) is None
    assert rule.check(Progress(norms, 1, seconds=4.0, step_seconds=1.1)) is End.MAX_SECONDS
    assert rule.check(Progress(norms, 0, seconds=5.0)) is End.MAX_SECONDS


def test_what_is_not_a_number_never_converges():
    progress = Progress(torch.tensor([0.0, float("nan")], dtype=torch.float64))
    assert RelativeResidual(1.0).check(progress) is None
    assert RelativeResidual(1.0, reduce="mean").check(progress) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: RelativeResidual(-1),
        lambda: RelativeResidual(float("nan")),
        lambda: RelativeResidual(0.1, reduce="median"),
        lambda: MaxEpochs(-1),
        lambda: MaxIterations(-2),
        lambda: MaxSeconds(float("nan")),
    ],
)
def test_wrong_limits_say_so(make):
    with pytest.raises(ValueError, match="got|must be"):
        make()


def test_rules_are_values():
    assert RelativeResidual(0.1) | MaxEpochs(3) == RelativeResidual(0.1) | MaxEpochs(3)
    with pytest.raises(AttributeError):
        MaxEpochs(3).limit = 4


def test_every_failure_has_a_remedy():
    of_solves = {End.MAX_ITER, End.MAX_EPOCHS, End.MAX_SECONDS, End.STAGNATED, End.BREAKDOWN}
    assert {end for end in End if end.remedy} == of_solves
    assert all(end.fails for end in of_solves)
