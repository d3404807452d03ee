"""Mistakes in the noise of random features."""

TESTS = "tests/models/fourier/test_rff_noise.py"

MUTANTS = [
    (
        "a fit that ends early keeps the noise of its last step",
        "RFFRegressor._fit_method",
        "early = result.stop_reason is not End.CONVERGED",
        "early = False",
        f"{TESTS} -k 'training_ends or without_a_step'",
        True,
    ),
    (
        "a converged fit changes its noise again",
        "RFFRegressor._fit_method",
        "early = result.stop_reason is not End.CONVERGED",
        "early = True",
        f"{TESTS} -k has_converged",
    ),
    (
        "a model of a step has other noise than a fit that ends there",
        "RFFRegressor._fit_method",
        "model._finish(problem, features, step.theta, True)",
        "model._finish(problem, features, step.theta, False)",
        f"{TESTS} -k model_of_a_step",
    ),
    (
        "training begins with the noise of an exact process",
        "FeatureGradient.suited",
        "return starting_noise(problem, theta, self.features)",
        "return theta",
        f"{TESTS} -k first_step",
        True,
    ),
    (
        "an optimiser that begins where it is told gets other noise",
        "fit_hyperparameters",
        (
            "if compare_starts and (not settings.follows_scikit_learn):\n"
            "    theta = _suited(problem, estimator, theta, run)"
        ),
        (
            "if not settings.follows_scikit_learn:\n"
            "    theta = _suited(problem, estimator, theta, run)"
        ),
        f"{TESTS} -k first_step",
    ),
    (
        "a start that time ends is an error",
        "_suited",
        "with run.budget.may_end(), watched(run.budget.check): ...",
        "with watched(run.budget.check): ...",
        f"{TESTS} -k without_a_step",
    ),
    (
        "targets outside the span of the features do not count",
        "NoiseSpectrum.of_sums",
        "rest = max(float(sums.squares - energies.sum()), 0.0)",
        "rest = 0.0",
        f"{TESTS} -k decomposition",
        True,
    ),
    (
        "directions without features have no determinant",
        "NoiseSpectrum.log_likelihood",
        "float(total.log().sum()) + others * math.log(level)",
        "float(total.log().sum())",
        f"{TESTS} -k decomposition",
    ),
    (
        "projections are not divided by their eigenvalues",
        "NoiseSpectrum.of_sums",
        "squares / torch.where(seen, values, 1.0)",
        "squares",
        f"{TESTS} -k decomposition",
    ),
    (
        "several targets share one determinant",
        "NoiseSpectrum.log_likelihood",
        "self.t * (log_det + self.n * math.log(2 * math.pi))",
        "log_det + self.n * math.log(2 * math.pi)",
        f"{TESTS} -k decomposition",
    ),
    (
        "the prior of the noise is forgotten",
        "NoiseLine._objective",
        "return log_likelihood(shift) + self.problem.log_prior(at.numpy())[0]",
        "return log_likelihood(shift)",
        f"{TESTS} -k maximises",
    ),
    (
        "known noise is forgotten",
        "NoiseLine.level",
        "return float(kernel.noise(self.at(shift), row)) + self.known[0]",
        "return float(kernel.noise(self.at(shift), row))",
        f"{TESTS} -k maximises",
    ),
    (
        "known noise of single rows counts as equal",
        "NoiseLine.equal",
        "return high - low <= _EQUAL * high",
        "return True",
        f"{TESTS} -k known_noise_of_single_rows",
    ),
    (
        "merged rows add nothing to the likelihood",
        "suited_noise",
        "return spectrum.log_likelihood(line.level(shift)) + more",
        "return spectrum.log_likelihood(line.level(shift))",
        f"{TESTS} -k merged",
    ),
    (
        "noise leaves its bounds",
        "NoiseLine.at",
        "moved = (self.theta + shift).clamp(low, high)",
        "moved = self.theta + shift + 0 * low",
        f"{TESTS} -k bounds",
    ),
    (
        "other hyperparameters move with the noise",
        "NoiseLine.at",
        "return torch.where(torch.as_tensor(self.free), moved, self.theta)",
        "return moved",
        f"{TESTS} -k maximises",
    ),
    (
        "the sums are those of the noise before",
        "suited_noise",
        "sums = sums.with_noise(line.level(shift) / level)",
        "sums = sums.with_noise(1.0)",
        f"{TESTS} -k maximises",
        True,
    ),
    (
        "the grid of noise is all that is tried",
        "NoiseLine.best",
        "return max([0.0, near, float(found.x)], key=value)",
        "return near",
        f"{TESTS} -k maximises",
    ),
    (
        "amplitudes count as noise levels",
        "TorchKernel.noise_levels",
        'return self._named("noise_level")',
        'return self._named("noise_level", "constant_value")',
        f"{TESTS} -k maximises",
    ),
]
