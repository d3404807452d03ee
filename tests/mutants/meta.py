"""Mistakes in what estimators over estimators promise: weights and noise from rows not seen."""

UNSEEN = "meta/_unseen.py"
STACKED = "meta/_stacked.py"
NOISE = "meta/_heteroscedastic.py"
TESTS = "tests/meta/test_validated.py"
TIME = "tests/meta/test_time.py"
FEATURES = "tests/meta/test_heteroscedastic.py -k means_are_those_of_folds"
UNITS = "tests/contracts/test_units.py"

MUTANTS = [
    (
        "folds are predicted by fits that have seen them",
        UNSEEN,
        "found = self._fitted(fresh, fitted, part, preview, False, True)",
        "found = self._fitted(fresh, slice(None), part, preview, False, True)",
        f"{TESTS} -k a_stack",
        True,
    ),
    (
        "weights are equal",
        STACKED,
        "own[:size] = stacking_weights(errors[:size], counts)",
        "own[:size] = 1 / size",
        f"{TESTS} -k a_stack",
        True,
    ),
    (
        "a refit that was cut predicts",
        UNSEEN,
        "if found is None or run.stopped or found.cut:",
        "if found is None:",
        f"{TESTS} -k refit_that_is_cut",
        True,
    ),
    (
        "folds that were cut differently count",
        UNSEEN,
        "elif end.reason is not None or trial.cut:",
        "elif end.reason is not None:",
        f"{TIME} -k cut_differently",
    ),
    (
        "folds follow a fit that a callback has ended",
        UNSEEN,
        "                if not run.stopped:\n                    last",
        "                if True:\n                    last",
        f"{TESTS} -k callback",
    ),
    (
        "a fit to all rows begins although it will not end",
        UNSEEN,
        "if not run.budget.allows(_MARGIN * trial.seconds * len(self.X) / len(self.folds[0][0])):",
        "if not run.budget.allows(0.0):",
        f"{TIME} -k will_not_end",
    ),
    (
        "folds begin although they will not end",
        UNSEEN,
        "several += phase.affordable(costs.__getitem__, range(len(costs)))",
        "several += len(costs) - 1",
        f"{TIME} -k will_not_end",
    ),
    (
        "a noise model learns from means without one row",
        "core/_fitted.py",
        "return self.mean if self.fold_mean is None else self.fold_mean",
        "return self.mean",
        FEATURES,
        True,
    ),
    (
        "errors are those of training rows",
        UNSEEN,
        "            found = scaled.left_out(self.X, self.y, noise, np.sort(order))",
        "            found = scaled.left_out(self.X, self.y, noise, np.sort(order))\n"
        "            found = found and replace(found, mean=scaled.unscaled(self.X[found.rows])[0])",
        f"{TESTS} -k over_a_process",
        True,
    ),
    (
        "a round that was cut replaces the one before",
        NOISE,
        "if kept is None or not trial.cut:",
        "if True:",
        f"{TIME} -k round_that_is_cut",
    ),
    (
        "predictions that are not finite count",
        UNSEEN,
        "if not (np.isfinite(left.mean).all()",
        "if False and not (np.isfinite(left.mean).all()",
        f"{TESTS} -k bad_member",
    ),
    (
        "a member that fails ends the others",
        "meta/_comparison.py",
        "except FAILURES as error:",
        "except TimeoutError as error:",
        f"{TESTS} -k bad_member",
    ),
    (
        "a refit that fails ends the fit",
        UNSEEN,
        "            except FAILURES as error:",
        "            except TimeoutError as error:",
        f"{TESTS} -k refit_that_fails",
    ),
    (
        "members of hardly any weight predict",
        STACKED,
        "own[own < LEAST_WEIGHT] = 0",
        "own[own < 0] = 0",
        f"{TESTS} -k far_better",
    ),
    (
        "a mean function that was not compared predicts",
        "meta/_mean_function.py",
        "best = max(fits, key=lambda fit: fit.density)",
        "best = max(fits, key=lambda fit: fit.density)._replace(weight=1.0)",
        f"{TESTS} -k a_mean_function",
    ),
    (
        "further rows change the units of the kernel",
        "core/_regressor.py",
        '"normalize_y": False, "alpha": alpha}',
        '"normalize_y": True, "alpha": alpha}',
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "the model with further rows forgets the scale of its targets",
        "core/_regressor.py",
        "fit._y_train_mean, fit._y_train_std = table.y_mean, table.y_std",
        "fit._y_train_mean = table.y_mean",
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "the model with further rows forgets alpha",
        "core/_regressor.py",
        'alpha = 0.0 if "noise_variance" in given else table.noise[0]',
        "alpha = 0.0",
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "known noise of further rows has the units of y",
        "core/_regressor.py",
        "known = self._own_noise(len(X), std) + known_noise(noise_variance, len(X), std)\n"
        "        other.n",
        "known = self._own_noise(len(X), std) + known_noise(noise_variance, len(X), std / std)\n"
        "        other.n",
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "weights given further rows forget the earlier ones",
        "core/posteriors/_features.py",
        "P @ self.mean + scaled.T @ Y",
        "scaled.T @ Y",
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "deep kernels of few rows do not see the rows that are added",
        "models/deep/_further_rows.py",
        "joined = ExactProcess(self._exact.table.joined(more), self._exact.kernel)",
        "joined = self._exact",
        f"{UNITS} -k further_rows",
        True,
    ),
    (
        "alpha changes its units where a kernel is kept",
        "meta/_below.py",
        "alpha = np.asarray(fitted.alpha, float) / fitted._own_unit(fitted._y_train_std)",
        "alpha = np.asarray(fitted.alpha, float)",
        f"{UNITS} -k folds",
        True,
    ),
    (
        "a grid takes the kernel of the exact process in its place",
        "meta/_below.py",
        "if process is not None and len(process.table.X) <= SMALL_TABLE:",
        "if False:",
        f"{UNITS} -k 'folds or over_others'",
        True,
    ),
    (
        "folds keep the kernel of a network that they do not have",
        "meta/_below.py",
        "if isinstance(fitted, GPModel) and not (of_rows and fitted._kernel_sees_rows()):",
        "if isinstance(fitted, GPModel) and not of_rows:",
        f"{UNITS} -k folds",
        True,
    ),
]
