"""Mistakes in quadruply stochastic steps and in relevance vectors."""

TRAINING = "tests/models/sampled/test_qsgp_training.py"
STEPPER = "models/sampled/_stepper.py"

MUTANTS = [
    (
        "one draw for both members",
        STEPPER,
        "left, right = self._draw(X, k), self._draw(X, k)",
        "left = right = self._draw(X, k)",
        TRAINING,
        True,
    ),
]
