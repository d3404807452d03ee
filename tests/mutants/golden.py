"""Changes that no other test is made for, and that recorded values show."""

VALUES = "tests/golden/test_golden_values.py -k"

MUTANTS = [
    (
        "the jitter of inducing points is tenfold",
        "models/inducing/_bound.py",
        "JITTER = {torch.float64: 1e-8",
        "JITTER = {torch.float64: 1e-7",
        f"{VALUES} svgp-600-student",
        True,
    ),
    (
        "training makes one more step",
        "core/training/_quasi_newton.py",
        "if made == max_iter - 1:",
        "if made == max_iter:",
        f"{VALUES} iterative-150-weights",
        True,
    ),
    (
        "the report lists choices that had no effect",
        "core/_record.py",
        "choices={k: v for k, v in self._choices.items() if k not in self._ignored},",
        "choices=dict(self._choices),",
        f"{VALUES} 'nngp-300 or svgp-150 or sgpr-600 or iterative-60 or qsgp-300'",
        True,
    ),
]
