"""The fast profile of the fuzz suite; ``make fuzz CASES=5000`` is the long one."""

from fuzz.cases import cases, outcome
from hypothesis import HealthCheck, Phase, given, settings


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_every_case_predicts_or_says_what_to_do(case):
    outcome(case)
