"""A few cases of the fuzz suite; ``make fuzz CASES=2000`` draws more."""

from fuzz.cases import absent_settings, cases, outcome
from hypothesis import HealthCheck, Phase, given, settings

from skscalablegp import QSGPRegressor


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_every_case_predicts_or_says_what_to_do(case):
    outcome(case)


def test_remedies_that_an_estimator_does_not_have_are_seen():
    model = QSGPRegressor()
    assert absent_settings("raise max_jitter, or alpha=1e-3; X has grid_size=3", model) == {
        "alpha",
        "grid_size",
    } - set(model.get_params())
    assert not absent_settings("kernel=RBF(alpha=2) is wrong: use n_components=5", model)
    assert not absent_settings("too few, or use KISSGPRegressor with grid_size=4", model)
