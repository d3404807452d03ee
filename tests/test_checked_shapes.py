"""The first calls of a function are checked against its signature, once or in each test anew."""

import dataclasses

import checked_shapes
import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor

from skscalablegp.linalg.solvers import relative_norms


def test_the_package_is_checked():
    """By whichever decorator the hook was given: `B` has as many columns as there are norms."""
    checked_shapes.count_anew()
    R, norms = torch.ones(4, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    with pytest.raises(jaxtyping.TypeCheckError):
        relative_norms(R, norms)


def total(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return x.sum() + y.sum()


@pytest.fixture
def two_calls(monkeypatch):
    """`total` with a check of its first two calls in each test."""
    monkeypatch.setattr(checked_shapes, "EACH_TEST", True)
    checked_shapes.count_anew()
    monkeypatch.setattr(checked_shapes, "CHECKED_CALLS", 2)
    return checked_shapes.in_first_calls(typechecker=beartype)(total)


def test_later_calls_go_unchecked_until_the_next_test(two_calls):
    x, longer = torch.ones(2), torch.ones(3)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            two_calls(x, longer)
    assert two_calls(x, longer) == 5
    checked_shapes.begin_test()
    with pytest.raises(jaxtyping.TypeCheckError):
        two_calls(x, longer)


def test_no_test_begins_anew_where_one_check_in_a_process_is_enough(two_calls, monkeypatch):
    monkeypatch.setattr(checked_shapes, "EACH_TEST", False)
    x, longer = torch.ones(2), torch.ones(3)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            two_calls(x, longer)
        checked_shapes.begin_test()
    assert two_calls(x, longer) == 5


@pytest.fixture
def one_call(monkeypatch):
    """One check of each function in this process."""
    monkeypatch.setattr(checked_shapes, "EACH_TEST", False)
    monkeypatch.setattr(checked_shapes, "CHECKED_CALLS", 1)


@pytest.mark.usefixtures("one_call")
def test_dataclasses_are_checked_like_functions():
    """Two with the same fields have the same code, and a check each."""
    for wanted, other in (("2", 3), ("3", 2)):
        fields = {"x": Float[torch.Tensor, wanted]}
        made = dataclasses.make_dataclass(f"Of{wanted}", fields.items())
        made = checked_shapes.in_first_calls(made, typechecker=beartype)
        with pytest.raises(jaxtyping.TypeCheckError):
            made(torch.ones(other))
        assert len(made(torch.ones(other)).x) == other


class Doubled:
    def of(self, x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x


@pytest.mark.usefixtures("one_call")
def test_a_method_without_further_checks_is_as_it_was_written():
    written = Doubled.of
    Doubled.of = checked_shapes.in_first_calls(typechecker=beartype)(written)
    for _ in range(2):
        assert Doubled().of(torch.ones(1)) == 2
        # What a test holds is what pickling finds by its name.
        assert Doubled.of.__wrapped__ is written
    checked_shapes.begin_test()
    assert Doubled.of is written


def test_functions_inside_a_function_are_counted_as_one(two_calls):
    def outer(y):
        @checked_shapes.in_first_calls(typechecker=beartype)
        def inner(x: Float[Tensor, "2"]):
            return x

        return inner(y)

    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError):
            outer(torch.ones(3))
    assert len(outer(torch.ones(3))) == 3
