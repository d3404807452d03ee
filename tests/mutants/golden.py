"""Changes that no other test is made for, and that recorded values show."""

VALUES = "tests/golden/test_golden_values.py -k"

MUTANTS = [
    (
        "the jitter of inducing points is tenfold",
        "JITTER",
        "{torch.float64: 1e-8, torch.float32: 1e-6}",
        "{torch.float64: 1e-7, torch.float32: 1e-6}",
        f"{VALUES} svgp-600-student",
        True,
    ),
    (
        "training makes one more step",
        "QuasiNewton.maximize",
        "max_iter - 1",
        "max_iter",
        f"{VALUES} iterative-150-weights",
        True,
    ),
    (
        "the report lists choices that had no effect",
        "FitRecord.report",
        "{k: v for k, v in self._choices.items() if k not in self._ignored}",
        "dict(self._choices)",
        f"{VALUES} 'nngp-300 or svgp-150 or sgpr-600 or iterative-60 or qsgp-300'",
        True,
    ),
]
