"""Mistakes in nearest-neighbour Gaussian processes."""

TESTS = "tests/models/neighbors/test_nngp.py"
LOCAL = "models/neighbors/_local.py"
METRIC = "models/neighbors/_metric.py"
POSTERIOR = "models/neighbors/_posterior.py"
OBJECTIVES = "models/neighbors/_objectives.py"

MUTANTS = [
    (
        "sets without a factor in single precision keep what they got",
        LOCAL,
        "            if lost.any():",
        "            if False:",
        f"{TESTS} -k single_precision",
    ),
    (
        "neighbours have no noise",
        LOCAL,
        "H.diagonal(dim1=1, dim2=2).add_(noise)",
        "H.diagonal(dim1=1, dim2=2).add_(0 * noise)",
        f"{TESTS} -k nearest_rows",
    ),
    (
        "later rows count as earlier ones",
        LOCAL,
        "torch.where(counts[rows], _SAME, 1 / _SAME)",
        "torch.where(counts[rows], _SAME, _SAME)",
        f"{TESTS} -k chain",
    ),
    (
        "the chain's steps have the wrong sign",
        LOCAL,
        "device=X.device) - A[order][:, order]",
        "device=X.device) + A[order][:, order]",
        f"{TESTS} -k chain",
    ),
    (
        "the slope of a row left out forgets the variance",
        LOCAL,
        "beta = (r.square() / s.square() - 1 / s)",
        "beta = (r.square() / s.square())",
        f"{TESTS} -k gradients",
    ),
    (
        "blocks count their determinant once for all targets",
        LOCAL,
        "W = 0.5 * (V @ V.mT - t * torch",
        "W = 0.5 * (V @ V.mT - torch",
        f"{TESTS} -k gradients",
    ),
    (
        "a row left out keeps its own noise to itself",
        LOCAL,
        "s = (found.variance + own)[:, None]",
        "s = found.variance[:, None]",
        f"{TESTS} -k left_out_against",
    ),
    (
        "nearness forgets length scales",
        METRIC,
        "scale = weight * 0.5**0.5 / leaf.length_scale.value_like(theta, X)",
        "scale = torch.tensor([weight * 0.5**0.5], dtype=X.dtype)",
        f"{TESTS} -k nearest_rows",
    ),
    (
        "rows beside the tree have the tree's numbers",
        METRIC,
        "np.arange(len(self._more)) + self._tree.n",
        "np.arange(len(self._more))",
        f"{TESTS} -k added_rows",
    ),
    (
        "joint variances are not those of single rows",
        POSTERIOR,
        "return mean, half * scale[:, None]",
        "return mean, half",
        f"{TESTS} -k joint",
    ),
    (
        "calibration forgets noise that is known",
        OBJECTIVES,
        "variance * factor + known / counts",
        "variance * factor",
        f"{TESTS} -k known_noise",
    ),
]
