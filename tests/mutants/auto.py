"""Mistakes in what automatic estimators promise at any moment of their time."""

BASE = "meta/_auto_base.py"
DIVISION = "meta/_division.py"
AUTO = "meta/_auto.py"
POOL = "meta/_pool.py"
TRIALS = "meta/_trials.py"
TESTS = "tests/meta/test_anytime.py"
MEMBERS = "tests/meta/test_auto.py"

MUTANTS = [
    (
        "members have seen the rows that judge them",
        BASE,
        "some, n = rows.folds[0][0], len(rows.folds[0][0])",
        "some, n = np.arange(len(rows.y)), len(rows.y)",
        f"{TESTS} -k weights_come",
        True,
    ),
    (
        "folds are judged by their own rows",
        BASE,
        "fit = self._fitted(candidate, again, rows, fitted, _at_least(share, 0.1, run), run)",
        "fit = self._fitted(candidate, again, rows, every, _at_least(share, 0.1, run), run)",
        f"{TESTS} -k one_fold",
        True,
    ),
    (
        "weights are equal",
        AUTO,
        "self._pool(self._weightings[0], Scaled(None, NoiseModel(log)), rows)",
        "self._pool(np.ones(len(means)) / len(means), Scaled(None, NoiseModel(log)), rows)",
        f"{TESTS} -k weights_come",
        True,
    ),
    (
        "the mixture is not calibrated before it has a noise model",
        AUTO,
        "self._pool(self._weightings[0], Scaled(None, NoiseModel(log)), rows)",
        "self._pool(self._weightings[0], Scaled(None), rows)",
        f"{TESTS} -k any_two_steps",
        True,
    ),
    (
        "members are compared on different rows",
        DIVISION,
        "seen[self.order[: min(judged)]] = True",
        "seen[self.order[: max(judged)]] = True",
        f"{TESTS} -k common_rows",
        True,
    ),
    (
        "a member that has judged too few rows has weight",
        BASE,
        "if done < min(ENOUGH, len(rows.held)) and self._members:",
        "if False:",
        f"{TESTS} -k without_time_for_predictions",
        True,
    ),
    (
        "a fit grows although it will not end",
        TRIALS,
        "if budget.allows(cost)]",
        "if budget.allows(0.0)]",
        f"{TESTS} -k fewer_rows",
        True,
    ),
    (
        "predictions do not count in the growth of a fit",
        BASE,
        "later = a_row * min(ENOUGH, len(rows.held))",
        "later = 0.0",
        f"{TESTS} -k predictions_count",
        True,
    ),
    (
        "predictions that are no numbers are kept",
        BASE,
        "if not np.isfinite(found[:, ~missing]).all():",
        "if False:",
        f"{MEMBERS} -k dropped",
    ),
    (
        "a mixture that is not clearly better wins",
        POOL,
        "ordered.insert(int(clearly_smaller(found[0][0], loss)), best)",
        "ordered.append(best)",
        f"{MEMBERS} -k wins_ties",
    ),
    (
        "a slow member without weight limits the rows of the others",
        BASE,
        "if slowest.all() or found[0][slowest].any():",
        "if True:",
        f"{TESTS} -k slow_member_without_weight",
        True,
    ),
    (
        "the fit without the first fold is never replaced",
        BASE,
        "found, done, note, not first.note, first.seconds)",
        "found, done, note, False, first.seconds)",
        f"{TESTS} -k one_fold",
        True,
    ),
    (
        "a refit begins although it will not end",
        BASE,
        "if run.stopped or not run.budget.allows(needs):",
        "if run.stopped:",
        f"{TESTS} -k one_fold",
    ),
    (
        "a refit that time has cut predicts",
        BASE,
        "if run.stopped or ended:",
        "if False:",
        f"{TESTS} -k refit_that_is_cut",
        True,
    ),
    (
        "a member without noise keeps its variances",
        POOL,
        "variance = np.maximum(variance, floor)",
        "variance = np.maximum(variance, least)",
        f"{MEMBERS} -k variances_of_zero",
        True,
    ),
    (
        "copies are on both sides of the split",
        DIVISION,
        "pairs = _pairs(X, y, groups, seed, classes, fraction)",
        "pairs = _pairs(X, y, None, seed, classes, fraction)",
        f"{MEMBERS} -k stay_together",
        True,
    ),
    (
        "a member begins without time",
        BASE,
        "if run.stopped or (self._members and late):",
        "if run.stopped:",
        f"{TESTS} -k begins_without_time",
        True,
    ),
]
