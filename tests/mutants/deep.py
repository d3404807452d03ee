"""Mistakes in the gradients of deep kernels: the saddle, the running average, exact passes."""

GRADIENTS = "tests/models/deep/test_batch_gradients.py"
STEPS = "tests/models/deep/test_dkl.py -k own_batches"
MINIMAX = "models/deep/_minimax.py"
WHITE = "tests/models/deep/test_white_noise.py"
NOISE = "models/deep/_noise.py"
SCGD = "models/deep/_compositional.py"
STEPPER = "models/deep/_stepper.py"
FIRST = "core/_first_layer.py"
LAYER = "tests/core/test_first_layer.py"

MUTANTS = [
    (
        "B descends",
        MINIMAX,
        "q = state.q + step * (_STIFFNESS * (a - F)",
        "q = state.q - step * (_STIFFNESS * (a - F)",
        GRADIENTS,
        True,
    ),
    (
        "A ascends",
        MINIMAX,
        "a = state.a - _PRIMAL_RATE * step * change",
        "a = state.a + _PRIMAL_RATE * step * change",
        GRADIENTS,
        True,
    ),
    (
        "the slope is never updated",
        MINIMAX,
        "slope=slope,\n            trace=slope.diagonal().sum(),",
        "slope=state.slope,\n            trace=state.trace,",
        GRADIENTS,
        True,
    ),
    (
        "one batch for both parts, in the rule",
        MINIMAX,
        "(*state.pending, batch.other)",
        "(*state.pending, batch.phi.detach())",
        GRADIENTS,
        True,
    ),
    (
        "one batch for both parts, in the step",
        STEPPER,
        "others, other_root = self._weighted(next(self._others))",
        "others, other_root = index, root",
        STEPS,
        True,
    ),
    ("too fast a multiplier", MINIMAX, "WINDOW = 400", "WINDOW = 10", GRADIENTS),
    ("no ball for B", MINIMAX, "q = self._within(q, a, t)\n", "q = q\n", GRADIENTS),
    (
        "F lacks n / b",
        MINIMAX,
        "F = rows.T @ rows * (batch.n / len(rows)) + floor",
        "F = rows.T @ rows + floor",
        GRADIENTS,
    ),
    (
        "an average that forgets nothing",
        SCGD,
        "kept = (1 - rate) ** len(pending)",
        "kept = 1.0",
        GRADIENTS,
    ),
    (
        "the average's noise is left out",
        SCGD,
        "F.diagonal().add_(noise)",
        "F.diagonal().add_(0 * noise)",
        GRADIENTS,
    ),
    (
        "the trace of the inverse is not the slope's",
        "models/deep/_objective.py",
        "torch.exp(log_noise) * trace / n",
        "torch.exp(log_noise) * trace",
        GRADIENTS,
    ),
    (
        "a constant that multiplies fixed noise does not see it",
        STEPPER,
        "log_noise = self.features.white.log(self.tensors[self.features.theta_at]).to(phi)",
        "log_noise = self.log_noise",
        f"{WHITE} -k follows_from",
    ),
    (
        "fixed noise is counted twice",
        NOISE,
        "(noise - fixed) / now",
        "noise / now",
        f"{WHITE} -k posterior_is",
    ),
    (
        "first weights follow length scales instead of their inverses",
        FIRST,
        "squares = 1 / np.square(kernel.k1.k2.length_scale)",
        "squares = np.square(kernel.k1.k2.length_scale)",
        LAYER,
    ),
    (
        "rows of the first layer depend on the seed",
        FIRST,
        "generator = torch.Generator().manual_seed(0)",
        "generator = run.generator",
        LAYER,
    ),
    (
        "counts of merged rows do not reach the process of the first layer",
        "models/deep/_source.py",
        "repeats = None if k is None else Repeats(k.to(X), torch.zeros_like(noise))",
        "repeats = None",
        "tests/models/deep/test_dkl.py -k counts_merged",
    ),
]
