"""
Is one model better than another? Cross-validation, and what it can decide
==========================================================================

This page compares five approximations of a Gaussian process on one table: Russian-roulette
conjugate gradients, iterative solves, a deep kernel, quadruply stochastic inference and inducing
points. scikit-learn's cross-validation compares them, and the scorers of ``skscalablegp.metrics``
evaluate means and standard deviations together. The table is small so that the page runs quickly.
Methods for many rows may be worse here. By default, three of the five would use the exact process
on so small a table; their settings select the method for large tables. The second half tests how
much of the differences is due to the random folds.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_cross_val_comparison.png"

import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import RepeatedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import (
    IterativeGPRegressor,
    MinimaxDKLRegressor,
    QSGPRegressor,
    RRCGRegressor,
    SVGPRegressor,
)
from skscalablegp.metrics import coverage_scorer, neg_crps_scorer, neg_nlpd_scorer

X, y = make_friedman1(n_samples=150, n_features=8, noise=1.0, random_state=0)

settings = dict(normalize_y=True, random_state=0)
models = {
    "RRCG": RRCGRegressor(truncation="exponential", max_iter=15, **settings),
    "iterative": IterativeGPRegressor(solver="block_cg", **settings),
    "deep kernel": MinimaxDKLRegressor(feature_extractor=(32, 32), max_epochs=20, **settings),
    "QSGP": QSGPRegressor(inference="stochastic", max_iter=50, **settings),
    "SVGP": SVGPRegressor(n_inducing=50, **settings),
}

# %%
# Every model sees the same ten splits: five folds, twice. Scores are larger for better models.
splits = RepeatedKFold(n_splits=5, n_repeats=2, random_state=0)
scoring = {"CRPS": neg_crps_scorer, "NLPD": neg_nlpd_scorer, "coverage": coverage_scorer(0.95)}
found = {}
for label, model in models.items():
    pipeline = make_pipeline(StandardScaler(), model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found[label] = cross_validate(pipeline, X, y, cv=splits, scoring=scoring)
    crps, nlpd, coverage = (found[label][f"test_{name}"].mean() for name in scoring)
    print(
        f"{label:12s} CRPS {-crps:.3f}  NLPD {-nlpd:.3f}  95% coverage {coverage:.3f}  "
        f"fit {found[label]['fit_time'].mean():.2f} s",
        flush=True,
    )

# %%
# Training sets of different splits share most of their rows, so that the scores are not independent
# and the usual t-test finds differences where there are none. Nadeau and Bengio (2003, *Inference
# for the generalization error*, Machine Learning 52) enlarge the variance of the mean difference
# from 1/k to 1/k + n_test / n_train, for k splits. The same t distribution, read as a posterior of
# the mean difference (Corani and Benavoli, 2015, *A Bayesian approach for comparing cross-validated
# algorithms on multiple data sets*, Machine Learning 100), gives the probability that one model is
# better, and the probability that the difference is too small to matter: here, below 1 % of the
# best CRPS.


def corrected_comparison(a, b, test_share, rope):
    """P value, and the probabilities that a is better, both are as good, b is better."""
    difference = a - b
    k = len(difference)
    variance = difference.var(ddof=1) * (1 / k + test_share / (1 - test_share))
    if variance == 0:
        return 1.0, np.array([0.0, 1.0, 0.0])
    t = stats.t(k - 1, difference.mean(), np.sqrt(variance))
    p = 2 * stats.t(k - 1).sf(abs(difference.mean()) / np.sqrt(variance))
    return p, np.array([t.sf(rope), t.cdf(rope) - t.cdf(-rope), t.cdf(-rope)])


scores = {label: result["test_CRPS"] for label, result in found.items()}
ranked = sorted(scores, key=lambda label: -scores[label].mean())
best = ranked[0]
rope = 0.01 * abs(scores[best].mean())
print(f"\n{best} has the best CRPS. Against it:")
print(f"{'':12s} {'p value':>8s}  {'P(worse)':>8s}  {'P(same)':>8s}  {'P(better)':>9s}")
compared = {
    label: corrected_comparison(scores[best], scores[label], 1 / 5, rope) for label in ranked[1:]
}
p_values = np.array([p for p, _ in compared.values()])
outcomes = {label: shares for label, (_, shares) in compared.items()}
# Holm's correction multiplies the smallest of k p values by k, the next by k - 1, and so on.
order = np.argsort(p_values)
holm = np.empty(len(order))
holm[order] = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)).clip(max=1)
for label, p in zip(outcomes, holm, strict=True):
    print(f"{label:12s} {p:8.4f}  " + "  ".join(f"{share:8.3f}" for share in outcomes[label]))

# %%
# Left: a dot for each split, joined across models, since a hard split is hard for all of them.
# Right: the tests after ten splits.
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
left.plot(ranked, -np.array([scores[label] for label in ranked]), "o-", color="0.7", ms=4)
left.plot(ranked, [-scores[label].mean() for label in ranked], "k_", ms=25, mew=2)
left.set(ylabel="CRPS", title="Each split")
shares = np.array([outcomes[label] for label in ranked[1:]]).reshape(-1, 3)
begin = np.zeros(len(shares))
for share, name, colour in zip(
    shares.T, ("worse", "as good", "better"), ("tab:red", "0.8", "tab:green"), strict=True
):
    right.barh(ranked[1:], share, left=begin, color=colour, label=name)
    begin += share
right.set(xlim=(0, 1), xlabel="probability", title=f"Compared with {best}")
right.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))
fig.tight_layout()
if len(sys.argv) > 1:
    fig.savefig(sys.argv[1])
else:
    plt.show()
