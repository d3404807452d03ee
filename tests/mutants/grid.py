"""Mistakes in interpolated models by products, and in variances of low rank."""

PRODUCTS = "models/grid/_products.py"
POSTERIOR = "models/grid/_product_posterior.py"
CG = "linalg/solvers/_cg.py"
FORMS, ROWS = "core/posteriors/_base.py", "core/posteriors/_kernel.py"
KISS = "tests/models/grid/test_kissgp.py -k TestProducts"
KISSGP, GRIDFIT = "models/grid/_kissgp.py", "tests/models/grid/test_kissgp.py"
LOVE = "tests/meta/test_love.py -k TestLOVE"

MUTANTS = [
    (
        "the trace of the gradient has another sign",
        PRODUCTS,
        "return 0.5 * fit - 0.5 * t / s",
        "return 0.5 * fit + 0.5 * t / s",
        KISS,
        True,
    ),
    (
        "the noise's gradient lacks its trace",
        PRODUCTS,
        "d_noise = 0.5 * (squares - t * trace)",
        "d_noise = 0.5 * squares",
        KISS,
    ),
    (
        "probes of equal noise are not scaled",
        PRODUCTS,
        "return [self._equal * D**-0.5, self._equal * D**-1.5]",
        "return [self._equal, self._equal]",
        KISS,
    ),
    (
        "quadrature of the logarithm without its denominator",
        PRODUCTS,
        "torch.log1p(beyond) / beyond",
        "torch.log1p(beyond)",
        KISS,
    ),
    (
        "solves end early",
        PRODUCTS,
        "_MOST_PRODUCTS = 1e-8, 1e-14, 1000",
        "_MOST_PRODUCTS = 1e-2, 1e-14, 1000",
        KISS,
    ),
    (
        "only the relative residual of a solve counts",
        PRODUCTS,
        "goal = (largest / self.norms(B)).clamp(_FINEST, _TOL)",
        "goal = torch.full(B.shape[1:], _TOL)",
        KISS,
    ),
    (
        "the direction's image in the inner product is not updated",
        CG,
        "state.dual_direction.mul_(beta).add_(state.dual_Z)",
        "state.dual_direction.copy_(state.dual_Z)",
        "tests/linalg/solvers/test_cg.py -k inner_product",
    ),
    (
        "residuals are measured in another norm than the operator's",
        CG,
        "own = state.dual_Z is not None",
        "own = False",
        "tests/linalg/solvers/test_cg.py -k inner_product",
    ),
    (
        "LOVE leaves the noise out",
        POSTERIOR,
        "inner = (inner + inner.T) / 2\n    inner.diagonal().add_(1)",
        "inner = (inner + inner.T) / 2\n    inner.diagonal().add_(0)",
        LOVE,
        True,
    ),
    (
        "samples of the prior",
        POSTERIOR,
        "return operator.dual(V) - self.root @ (self.root.T @ V)",
        "return operator.dual(V)",
        KISS,
    ),
    (
        "the mean error is measured, not the largest",
        FORMS,
        "error = float((made.variance(held) - exact).abs().max())",
        "error = float((made.variance(held) - exact).mean())",
        LOVE,
    ),
    (
        "no margin for rows that are not measured",
        "meta/_love.py",
        "self.variance_tol * scale / _MARGIN",
        "self.variance_tol * scale * _MARGIN",
        LOVE,
        True,
    ),
    (
        "low rank where exact variances cost no more",
        FORMS,
        "most = self.full // 2\n",
        "most = self.full\n",
        LOVE,
    ),
    (
        "the rank does not grow",
        ROWS,
        "more = min(size, most - size)",
        "more = min(1, most - size)",
        LOVE,
    ),
    (
        "summands of a start keep their share of the variance",
        "core/_starts.py",
        "_AMPLITUDES, _NOISES_OF_SUM = (1 / 3, 1.0, 3.0, 10.0, 30.0)",
        "_AMPLITUDES, _NOISES_OF_SUM = (1.0,)",
        "tests/models/grid/test_start.py -k 'few_columns_of_many'",
        True,
    ),
    (
        "a network leaves no time for its kernel",
        KISSGP,
        'run.budget.reserve("kernel of features")',
        "run.budget.reserve(0.0)",
        f"{GRIDFIT} -k 'leaves_time or at_a_cut'",
    ),
    (
        "the noise of features begins where rows have not been asked",
        KISSGP,
        "on_grid, rank = self._from_start(on_grid, rank, table if seen else table.rows(held), run)",
        "seen = False",
        f"{GRIDFIT} -k 'after_an_interrupt'",
    ),
    (
        "rows that the network has seen choose its noise",
        KISSGP,
        "table if seen else table.rows(held)",
        "table",
        f"{GRIDFIT} -k 'at_a_cut'",
    ),
    (
        "rows of a cell pass for rows that the kernel correlates",
        KISSGP,
        "points[row, axis.column] += axis.step",
        "points[row, axis.column] += 1e-9 * axis.step",
        "tests/core/test_learned.py -k points_of_a_grid",
    ),
    (
        "no variances over a factorised grid when the largest rank is small",
        "core/posteriors/_base.py",
        "return iter((LowRank(self.below, self.full, 0.0, None),))",
        "return iter(())",
        "tests/meta/test_love.py -k 'small_largest_rank'",
        True,
    ),
    (
        "a grid's rank does not follow the time budget",
        "models/grid/_kissgp.py",
        "most = affordable_rank(GridProblem.make(on_grid, rows, 0), run.budget)",
        "most = None",
        "tests/models/grid/test_kissgp.py -k grid_end_by_the_budget",
    ),
    (
        "a pickled model forgets the limit of its rank",
        "models/grid/_kissgp.py",
        'settings = self._budget(), device, getattr(self, "_most_rank", None)',
        "settings = self._budget(), device, None",
        "tests/models/grid/test_kissgp.py -k grid_end_by_the_budget",
    ),
    (
        "drawn functions leave out the error of interpolation",
        "models/grid/_posterior.py",
        "if not misfit > 0:",
        "if True:",
        "tests/contracts/test_one_distribution.py -k 'every_model and grid'",
        True,
    ),
]
