"""Mistakes in quadruply stochastic steps, their estimates, and relevance vectors."""

_TESTS = "tests/models/sampled/test_qsgp_training.py -k "
ONE_STEP = _TESTS + "gradients_of"
STEPS = _TESTS + "gradients_of_steps_at_full_draws"
SCORE = _TESTS + "the_score_is_the_dense"
THETA = _TESTS + "hyperparameters_follow"
KNOWN = _TESTS + "known_at_support"
OPTIMUM = _TESTS + "'bayesian_linear or known_at_support'"
RELEVANCE = "tests/models/sampled/test_relevance.py"
BOUNDS = "tests/models/sampled/test_qsgp_bounds.py -k "
STEPPER = "models/sampled/_stepper.py"
BATCH = "models/sampled/_batch.py"
ESTIMATES = "models/sampled/_estimates.py"
BLOCK = "models/sampled/_block.py"
BLOCK_TESTS = "tests/models/sampled/test_block.py -k "

MUTANTS = [
    (
        "a few rows are no points",
        "models/sampled/_plan.py",
        "most = n if most > _MOST_POINTS * n else most",
        "pass",
        "tests/models/sampled/test_sampled_plan.py -k functions_and",
        True,
    ),
    (
        "sums of equal numbers have a scale",
        "core/data/_rows.py",
        "mean = np.where((part == part[:1]).all(0), part[0], part.mean(0))",
        "mean = part.mean(0)",
        "tests/core/test_steps.py -k no_scale_of",
        True,
    ),
    (
        "block steps without the row's own dual weight",
        BLOCK,
        "weight, weight * (Y - f) - dual, gram",
        "weight, weight * (Y - f), gram",
        BLOCK_TESTS + "linear_regression",
    ),
    (
        "block steps that forget what other rows give",
        BLOCK,
        "outside, alpha = f - gram @ dual, dual",
        "outside, alpha = f, dual",
        BLOCK_TESTS + "mode_given",
    ),
    (
        "the variance of a row without its own observation",
        BLOCK,
        "return (others / (1 + others * one))[:, None]",
        "return others[:, None]",
        BLOCK_TESTS + "copies_of_the_others",
    ),
    (
        "the variance of a row given its batch alone",
        BLOCK,
        "rest = len(gram) / (n * one)",
        "rest = 1 / one",
        BLOCK_TESTS + "copies_of_the_others",
    ),
    (
        "block steps keep the first curvature",
        BLOCK,
        "self.curvature += _NEW * (curvature - self.curvature)",
        "pass",
        BLOCK_TESTS + "slopes_of_the_likelihood",
    ),
    (
        "columns of classes are taken for class numbers",
        "core/_learned.py",
        "if classes is not None and Y.shape[1] == 1:",
        "if classes is not None:",
        "tests/contracts/test_nothing_learned.py -k three_learned",
        True,
    ),
    (
        "held-out rows never take part",
        BLOCK,
        "            self.sampler.held = np.empty(0, dtype=np.int64)",
        "            pass",
        BLOCK_TESTS + "held_rows",
    ),
    (
        "snapshots without dual weights",
        BLOCK,
        "        self.dual.copy_(snapshot[-1])",
        "        pass",
        BLOCK_TESTS + "snapshots",
    ),
    (
        "one draw for both members",
        STEPPER,
        "left, right, third = self._draw(), self._draw(), None",
        "left = right = self._draw(); third = None",
        ONE_STEP,
        True,
    ),
    (
        "gradient of the dense columns zeroed",
        ESTIMATES,
        "-2 / t * terms.d_variance * f[:, t:]",
        "0 * terms.d_variance * f[:, t:]",
        STEPS,
        True,
    ),
    (
        "gradient of the dense columns negated",
        ESTIMATES,
        "-2 / t * terms.d_variance * f[:, t:]",
        "2 / t * terms.d_variance * f[:, t:]",
        STEPS,
        True,
    ),
    (
        "dense columns left out of the variance",
        ESTIMATES,
        "return self.square + (f[:, t:] * g[:, t:]).sum(1, keepdim=True)",
        "return self.square",
        STEPS,
        True,
    ),
    (
        "each draw meets its own residual",
        ESTIMATES,
        "    if noise.gaussian or control.crosses:\n",
        "    if False:\n",
        ONE_STEP,
    ),
    (
        "one draw's scale for all rows",
        STEPPER,
        "draw.data.scale * (pull + 0.5 * draw",
        "(pull + 0.5 * draw",
        ONE_STEP,
    ),
    (
        "the determinant's gradient left out",
        STEPPER,
        "-= 0.5 * draw.data.scale / weights",
        "-= 0 * weights",
        STEPS,
    ),
    (
        "the diagonal left out of the variance",
        BATCH,
        "return (sum(parts) / len(parts))[:, None]",
        "return 0 * (sum(parts) / len(parts))[:, None]",
        STEPS,
    ),
    (
        "the control variate knows nothing of the shared weights",
        STEPPER,
        "return own + (at_support * tail).T @ self.weights.shared.to(at_support)",
        "return own + 0 * tail[:, None]",
        OPTIMUM,
    ),
    (
        "what is known is not kept up to date",
        STEPPER,
        "self.weights.a += moved + self.flattening.gram @ shared",
        "self.weights.a += moved",
        KNOWN,
    ),
    (
        "the triangle is not kept",
        STEPPER,
        "change[:, :, self.t :] *= self._coordinates(index) >= columns",
        "pass",
        KNOWN,
    ),
    (
        "the score forgets the divergence",
        STEPPER,
        "(divergence - likelihood)",
        "(-likelihood)",
        SCORE,
    ),
    (
        "the score forgets the dense columns' variance",
        STEPPER,
        "self._sparse_variance + values[:, self.t :].square().sum(1, keepdim=True)",
        "self._sparse_variance",
        SCORE,
    ),
    (
        "hyperparameters forget the diagonal",
        BATCH,
        "square = task.third.scale * (third",
        "square = 0 * (third",
        THETA,
    ),
    (
        "the sampled loss forgets the rows that are not drawn",
        ESTIMATES,
        "return -batch.n / len(Y) * noise.counted(value).sum()",
        "return -value.sum()",
        BOUNDS + "sampled_loss",
    ),
    (
        "squares at the support rows pull with the wrong sign",
        ESTIMATES,
        "self.weight * (draw.phi_support.T",
        "-self.weight * (draw.phi_support.T",
        BOUNDS + "variance_falls",
    ),
    (
        "the closed form of the diagonal without the prior",
        ESTIMATES,
        "torch.rsqrt(curvature * squares + prior)",
        "torch.rsqrt(curvature * squares)",
        BOUNDS + "closed_form",
    ),
    (
        "held-out rows are trained on",
        STEPPER,
        'rows += np.searchsorted(before, rows, side="right")',
        "pass",
        _TESTS + "held_rows",
    ),
    (
        "relevance vectors forget the determinant",
        "models/sampled/_moments.py",
        "-0.5 * (t * (log_det + rows) + fit)",
        "-0.5 * (t * rows + fit)",
        RELEVANCE,
    ),
    (
        "relevance vectors are dropped from the wrong end",
        "models/sampled/_relevance.py",
        "least = int(added.argmin())",
        "least = int(added.argmax())",
        RELEVANCE,
    ),
    (
        "Newton steps with half of the curvature",
        "models/sampled/_exact.py",
        "(-2 * terms.d_variance / rows.Y.shape[1] * rows.phi)",
        "(-terms.d_variance / rows.Y.shape[1] * rows.phi)",
        _TESTS + "newton_steps",
    ),
    (
        "the noise of kernel functions at all rows stays at its bound",
        "models/sampled/_start.py",
        "best = self._below_the_noise_bound(best)",
        "pass",
        "tests/models/sampled/test_fits.py -k without_noise",
    ),
]
