"""Mistakes in truncation, gradients of the likelihood, objectives, natural steps and workers."""

LAWS = "tests/linalg/truncation"
TRUNCATED = "tests/linalg/gradients/test_truncated.py"
GRADIENTS = "tests/linalg/gradients/test_gradient_estimators.py"
NATURAL = "tests/core/test_natural.py -k 'not models'"
EXACT = "tests/linalg/gradients/test_marginal_likelihood.py"
LANCZOS = "tests/linalg/solvers/test_lanczos.py"
LAW, CUT = "linalg/truncation/_distributions.py", "linalg/gradients/_truncated.py"
SOLVED = "linalg/gradients/_iterative.py"
STEPS, LIKELIHOOD = "core/training/_natural.py", "linalg/gradients/_marginal_likelihood.py"

MUTANTS = [
    (
        "the reciprocal law falls with the square",
        LAW,
        "weights = 1 / torch.arange(low, high + 1, dtype=torch.float64)",
        "weights = 1 / torch.arange(low, high + 1, dtype=torch.float64).square()",
        LAWS,
        True,
    ),
    (
        "the geometric law stops three times as often",
        LAW,
        "return -math.log1p(-p)",
        "return -3 * math.log1p(-p)",
        LAWS,
        True,
    ),
    (
        "weights of terms are survival probabilities themselves",
        "linalg/truncation/_roulette.py",
        "weights = 1 / truncation.survival(j)",
        "weights = truncation.survival(j)",
        LAWS,
    ),
    (
        "single samples are not weighted",
        "linalg/truncation/_roulette.py",
        "return base + increment(draw) / float(truncation.pmf(draw))",
        "return base + increment(draw)",
        LAWS,
    ),
    (
        "strata all begin at zero",
        LAW,
        "u = (torch.arange(size, device=u.device) + u) / size",
        "u = u / size",
        LAWS,
    ),
    (
        "both factors of the quadratic form share their truncation",
        CUT,
        "left, right, solved = result.values",
        "left, right, solved = result.values[0], result.values[0], result.values[2]",
        f"{TRUNCATED} -k itself",
    ),
    (
        "the trace has the wrong sign",
        CUT,
        "torch.cat([left, solved * (-t / s)], 1)",
        "torch.cat([left, solved * (t / s)], 1)",
        f"{TRUNCATED} -k full_length",
    ),
    (
        "the trace is summed over probes, not averaged",
        CUT,
        "torch.cat([left, solved * (-t / s)], 1)",
        "torch.cat([left, solved * -t], 1)",
        f"{TRUNCATED} -k full_length",
    ),
    (
        "preconditioned probes are paired with themselves",
        SOLVED,
        "return z, covariance.solve(z)",
        "return z, z",
        f"{TRUNCATED} -k averaged_draws",
    ),
    (
        "cuts never come later",
        CUT,
        "if apart > FAR_APART:",
        "if apart > 1e9:",
        f"{TRUNCATED} -k cuts_come_later",
    ),
    (
        "standard preconditioned probes are paired with themselves",
        SOLVED,
        "return z, covariance.solve(z)",
        "return z, z",
        f"{GRADIENTS} -k quieter",
    ),
    (
        "half of the gradient is forgotten",
        SOLVED,
        "grad = 0.5 * operator.bilinear_grad(",
        "grad = operator.bilinear_grad(",
        f"{GRADIENTS} -k unbiased",
    ),
    (
        "pathwise probes have no noise",
        SOLVED,
        "return prior + operator.noise.sqrt()[:, None] * probes.noise",
        "return prior",
        f"{GRADIENTS} -k unbiased",
    ),
    (
        "pathwise noise has the variance for its deviation",
        SOLVED,
        "return prior + operator.noise.sqrt()[:, None] * probes.noise",
        "return prior + operator.noise[:, None] * probes.noise",
        f"{GRADIENTS} -k unbiased",
    ),
    (
        "cold starts keep their probes",
        SOLVED,
        "frozen = self.solver_warm_start and state.probes is not None",
        "frozen = state.probes is not None",
        f"{GRADIENTS} -k without_warm_start",
    ),
    (
        "the information lacks its half",
        "linalg/gradients/_fisher.py",
        "(0.5 * t * n / len(rows))",
        "(t * n / len(rows))",
        f"{GRADIENTS} -k fisher",
    ),
    (
        "the information is not scaled to all rows",
        "linalg/gradients/_fisher.py",
        "(0.5 * t * n / len(rows))",
        "(0.5 * t)",
        f"{GRADIENTS} -k fisher",
    ),
    (
        "natural steps go down",
        STEPS,
        "theta + step * (1 + turns) ** -_DECAY",
        "theta - step * (1 + turns) ** -_DECAY",
        NATURAL,
    ),
    (
        "frozen draws are never drawn again",
        STEPS,
        "evaluate.redraw()",
        "pass",
        NATURAL,
    ),
    (
        "the end forgets the noise",
        STEPS,
        "settled = noise < self.gain_tol and left",
        "settled = left",
        NATURAL,
    ),
    (
        "bounds are ignored",
        STEPS,
        "free = ~((low & (grad < 0)) | (high & (grad > 0)))",
        "free = np.ones(len(theta), dtype=bool)",
        NATURAL,
    ),
    (
        "the log determinant has the wrong sign",
        LIKELIHOOD,
        "return -0.5 * float(quadratic + t * log_det)",
        "return -0.5 * float(quadratic - t * log_det)",
        EXACT,
    ),
    (
        "the exact gradient counts one target for all",
        LIKELIHOOD,
        "W[rows].addmm_(V[rows], V.T, beta=-t)",
        "W[rows].addmm_(V[rows], V.T, beta=-1)",
        EXACT,
    ),
    (
        "the quadrature is not scaled by the rows",
        "linalg/solvers/_lanczos.py",
        "terms = n * quadrature_log(found)",
        "terms = quadrature_log(found)",
        LANCZOS,
    ),
    (
        "the last node of the quadrature is not at the bound",
        "linalg/solvers/_lanczos.py",
        ".mul(1 - 1e-6).clamp_max(lower)",
        ".mul(1 - 1e-6).clamp_max(2 * lower)",
        LANCZOS,
    ),
    (
        "the bias of the quadrature is not part of its error",
        "linalg/solvers/_lanczos.py",
        "float(terms.mean()), error + bias",
        "float(terms.mean()), error",
        LANCZOS,
    ),
    (
        "probes have the covariance of the low-rank part and the noise alone",
        SOLVED,
        "covariance = preconditioner.with_diagonal_of(operator)",
        "covariance = preconditioner",
        f"{GRADIENTS} -k quiet",
    ),
    (
        "work goes on after a failure",
        "linalg/parallel/_pool.py",
        "self._over |= error is not None",
        "self._over |= False",
        "tests/linalg/test_parallel.py",
    ),
    (
        "solutions are accumulated in the precision of products",
        "linalg/solvers/_cg.py",
        "B = B.double()",
        "B = B.clone()",
        "tests/linalg/solvers/test_cg.py",
    ),
]
