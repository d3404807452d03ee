"""Mistakes in nearest-neighbour Gaussian processes."""

TESTS = "tests/models/neighbors/test_nngp.py"
LOCAL = "models/neighbors/_local.py"
METRIC = "models/neighbors/_metric.py"
POSTERIOR = "models/neighbors/_posterior.py"
OBJECTIVES = "models/neighbors/_objectives.py"
FULL_SCALE = "models/neighbors/_full_scale.py"
SHARED = "tests/models/neighbors/test_full_scale.py"

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
    (
        "neighbours predict the whole process, not the residual one",
        FULL_SCALE,
        "found = condition(K - V @ V.mT, noise, Y)",
        "found = condition(K, noise, Y)",
        f"{SHARED} -k factorised",
    ),
    (
        "weights keep their prior variance",
        LOCAL,
        "found[1] = found[1] + shared.half(h).square().sum(1)",
        "found[1] = found[1] + h.square().sum(1)",
        f"{SHARED} -k joint_process",
    ),
    (
        "the mean forgets the inducing points",
        LOCAL,
        "found[0] = found[0] + V[:, -1].double() @ shared.mean",
        "found[0] = found[0]",
        f"{SHARED} -k joint_process",
    ),
    (
        "rows left out keep their share in the weights",
        LOCAL,
        "mean, total = without_own(Y, found.mean, found.variance - found.own, found.own + noise)",
        "mean, total = found.mean, found.variance + noise",
        f"{SHARED} -k exact_process",
    ),
    (
        "joint predictions do not share the weights",
        LOCAL,
        "right = own if shared is None else torch.cat([own, shared.half(H[order])], 1)",
        "right = own",
        f"{SHARED} -k exact_process",
    ),
    (
        "the slope forgets that inducing points move all rows",
        FULL_SCALE,
        "        if not self.rows.shape[1]:\n            return total",
        "        if True:\n            return total",
        f"{SHARED} -k gradients",
    ),
    (
        "the slope forgets the determinant of the weights' precision",
        FULL_SCALE,
        "by_h = r @ belief.mean.mT - t * spread / d[:, None]",
        "by_h = r @ belief.mean.mT",
        f"{SHARED} -k gradients",
    ),
    (
        "the determinant of the weights' precision counts once for all targets",
        FULL_SCALE,
        "value = t * log_det + sums.square",
        "value = t * sums.log_det + 2 * float(factor.diagonal().log().sum()) + sums.square",
        f"{SHARED} -k exact_likelihood",
    ),
    (
        "added rows leave the weights as they were",
        "models/neighbors/_nngp.py",
        "                if self.n_inducing_:\n                    run.finish",
        "                if False:\n                    run.finish",
        f"{SHARED} -k added_rows",
    ),
    (
        "another kernel keeps the weights of the trained one",
        "models/neighbors/_nngp.py",
        "        if torch.allclose(at.cpu(), theta.cpu(), rtol=1e-12):",
        "        if True:",
        f"{SHARED} -k exact_process",
    ),
]
