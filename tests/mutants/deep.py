"""Mistakes in the gradients of deep kernels: the saddle, the running average, exact passes."""

GRADIENTS = "tests/models/deep/test_batch_gradients.py"
STEPS = "tests/models/deep/test_dkl.py -k own_batches"
WHITE = "tests/models/deep/test_white_noise.py"
LAYER = "tests/core/test_first_layer.py"

MUTANTS = [
    (
        "B descends",
        "MinimaxGradient._follow",
        "state.q + step * (_STIFFNESS * (a - F) - (state.q - state.centre))",
        "state.q - step * (_STIFFNESS * (a - F) - (state.q - state.centre))",
        GRADIENTS,
        True,
    ),
    (
        "A ascends",
        "MinimaxGradient._follow",
        "a = state.a - _PRIMAL_RATE * step * change",
        "a = state.a + _PRIMAL_RATE * step * change",
        GRADIENTS,
        True,
    ),
    (
        "the slope is never updated",
        "MinimaxGradient._follow",
        (
            "replace(state, a=a, q=q, centre=centre, slope=slope, trace=slope.diagonal().sum(), "
            "pending=(), t=t)"
        ),
        (
            "replace(state, a=a, q=q, centre=centre, slope=state.slope, trace=state.trace, "
            "pending=(), t=t)"
        ),
        GRADIENTS,
        True,
    ),
    (
        "one batch for both parts, in the rule",
        "MinimaxGradient._follow",
        "(*state.pending, batch.other)",
        "(*state.pending, batch.phi.detach())",
        GRADIENTS,
        True,
    ),
    (
        "one batch for both parts, in the step",
        "WeightSpaceStepper._next_batch",
        "drawn.append(next(self._others))",
        "drawn.append(drawn[0])",
        STEPS,
        True,
    ),
    ("too fast a multiplier", "WINDOW", "WINDOW = 400", "WINDOW = 10", GRADIENTS),
    ("no ball for B", "MinimaxGradient._follow", "q = self._within(q, a, t)", "q = q", GRADIENTS),
    (
        "F lacks n / b",
        "MinimaxGradient._follow",
        "F = rows.T @ rows * (batch.n / len(rows)) + floor",
        "F = rows.T @ rows + floor",
        GRADIENTS,
    ),
    (
        "an average that forgets nothing",
        "CompositionalGradient._follow",
        "kept = (1 - rate) ** len(pending)",
        "kept = 1.0",
        GRADIENTS,
    ),
    (
        "the average's noise is left out",
        "_inverse",
        "F.diagonal().add_(noise)",
        "F.diagonal().add_(0 * noise)",
        GRADIENTS,
    ),
    (
        "the trace of the inverse is not the slope's",
        "log_det_direction",
        "torch.exp(log_noise) * trace / n",
        "torch.exp(log_noise) * trace",
        GRADIENTS,
    ),
    (
        "a constant that multiplies fixed noise does not see it",
        "WeightSpaceStepper._next_batch",
        "log_noise = self.features.white.log(theta).to(found[0].X)",
        "log_noise = self.log_noise",
        f"{WHITE} -k follows_from",
    ),
    (
        "fixed noise is counted twice",
        "WhiteNoise.moved",
        "(noise - fixed) / now",
        "noise / now",
        f"{WHITE} -k posterior_is",
    ),
    (
        "first weights follow length scales instead of their inverses",
        "_of_process",
        "squares = 1 / np.square(kernel.k1.k2.length_scale)",
        "squares = np.square(kernel.k1.k2.length_scale)",
        LAYER,
    ),
    (
        "rows of the first layer depend on the seed",
        "first_layer_rows",
        "generator = torch.Generator().manual_seed(0)",
        "generator = run.generator",
        LAYER,
    ),
    (
        "counts of merged rows do not reach the process of the first layer",
        "exact_problem",
        "GPProblem(compile_kernel(kernel, rows.X.shape[1]), rows)",
        "GPProblem(compile_kernel(kernel, rows.X.shape[1]), Rows.of(rows.X, rows.Y, rows.noise))",
        "tests/models/deep/test_dkl.py -k counts_merged",
    ),
    (
        "rows that join a deep model leave its likelihood",
        "DeepKernelRegressorBase._with_rows",
        "float(density.sum())",
        "0.0",
        "tests/contracts/test_equal_rows.py -k 'further_rows and deep'",
    ),
]
