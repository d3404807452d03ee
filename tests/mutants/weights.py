"""Mistakes in weights of rows."""

CONTRACT = "tests/contracts/test_sample_weight.py"
ORACLES = "tests/linalg/gradients/test_repeats.py"
MERGING = "tests/core/test_merging.py"
REPEATS = "linalg/gradients/_repeats.py"
OPERATOR = "linalg/operators/_kernel.py"
FIT = "core/_regressor.py"

MUTANTS = [
    (
        "the noise of a mean is that of a row",
        OPERATOR,
        "(noise if counts is None else noise / counts)",
        "noise",
        f"{ORACLES} -k exact_likelihood",
        True,
    ),
    (
        "the slope of a mean's noise is that of a row",
        OPERATOR,
        "noise = noise if self.counts is None else noise / self.counts",
        "pass",
        f"{ORACLES} -k exact_likelihood",
        True,
    ),
    (
        "differences within groups do not count",
        REPEATS,
        "+ self.within / v",
        "",
        f"{ORACLES} -k exact_likelihood",
        True,
    ),
    (
        "the mean of k rows has the density of one row",
        REPEATS,
        "((k - 1) * (2 * math.pi * v).log() + k.log())",
        "((k - 1) * (2 * math.pi * v).log())",
        f"{ORACLES} -k exact_likelihood",
        True,
    ),
    (
        "gradients by solves forget what means leave out",
        "linalg/gradients/_iterative.py",
        "grad = grad + problem.repeated(theta)[1]",
        "pass",
        f"{ORACLES} -k from_solves",
        True,
    ),
    (
        "the Fisher information forgets it",
        "linalg/gradients/_fisher.py",
        "information += _of_repeats(part, theta)",
        "pass",
        f"{ORACLES} -k fisher",
    ),
    (
        "the bound forgets it",
        "models/inducing/_collapsed.py",
        "(-more.sum()).backward()",
        "pass",
        f"{ORACLES} -k inducing",
    ),
    (
        "rows left out forget it",
        "models/neighbors/_local.py",
        "return value + float(more.detach()), slopes + more",
        "return value, slopes",
        f"{ORACLES} -k left_out",
    ),
    (
        "experts forget it",
        "models/experts/_gradient.py",
        "noise, repeats=repeats)",
        "noise)",
        f"{ORACLES} -k experts",
    ),
    (
        "equal rows are merged although their known noise differs",
        FIT,
        "if np.ptp(column) > 0]",
        "if False]",
        f"{CONTRACT} -k whose_known_noise",
        True,
    ),
    (
        "the bound with all points forgets the counts",
        "models/inducing/_collapsed.py",
        "return noise if repeats is None else noise / repeats.counts",
        "return noise",
        f"{CONTRACT} -k all_points",
    ),
    (
        "slopes of a batch forget the weights",
        "models/inducing/_bound.py",
        "each * terms.d_variance",
        "terms.d_variance",
        f"{ORACLES} -k in_a_batch",
        True,
    ),
    (
        "a weighted mean without weights",
        "core/data/_merging.py",
        "w[:, None] * away, begin",
        "away, begin",
        f"{MERGING} -k sums",
        True,
    ),
    (
        "the order of the rows decides that of merged rows",
        "core/data/_merging.py",
        "order = kept[np.lexsort(keys[::-1])]",
        "order = kept[np.lexsort(keys[: len(columns)][::-1])]",
        f"{MERGING} -k bit_for_bit",
        True,
    ),
    (
        "the scale of the target forgets the weights",
        "core/data/_rows.py",
        "share = counts[:, None] / counts.sum()",
        "share = np.full((len(Y), 1), 1 / len(Y))",
        f"{CONTRACT} -k scale_of_all_targets",
        True,
    ),
    (
        "the scale of the target forgets differences within groups",
        "core/data/_rows.py",
        " + within.sum(0) / counts.sum()",
        "",
        f"{CONTRACT} -k equal_rows_with_different",
        True,
    ),
    (
        "one of several equal rows is left out with the others",
        FIT,
        "rest = counts[groups][:, None] - 1 if alone else",
        "rest = 0 * counts[groups][:, None] if alone else",
        f"{CONTRACT} -k leaving_out",
        True,
    ),
]
