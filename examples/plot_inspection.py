"""
=========================
Inspecting a fitted model
=========================

The displays of `skscalablegp.inspection` show five aspects of a fitted model: the calibration of
its intervals, the intervals row by row, the relevance of columns, the shape of the function, and
the course of training. They take any regressor of this package, alone, in a pipeline or in a
search. The data are scikit-learn's 442 diabetes patients.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_inspection.png"

# %%
# A model and held-out patients
# -----------------------------

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import IterativeGPRegressor
from skscalablegp.inspection import (
    IntervalCalibrationDisplay,
    PosteriorDisplay,
    PredictionIntervalDisplay,
    RelevanceDisplay,
    TrainingDisplay,
)

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
model = make_pipeline(StandardScaler(), IterativeGPRegressor(random_state=0))
model.fit(X_train, y_train)

# %%
# Are the intervals calibrated?
# -----------------------------
#
# Left: the share of held-out patients inside intervals of each level; a calibrated model stays on
# the diagonal. Right: the histogram of the predicted probability of values below the observed one,
# which is uniform for a calibrated model. The grey bands show the variation by chance.

IntervalCalibrationDisplay.from_estimator(model, X_test, y_test, n_bins=10)

# %%
# Quantiles of any model can be drawn on the same axes. Gradient boosting, with one model for each
# quantile, is overconfident on held-out rows.

q = np.array([0.025, 0.05, 0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 0.95, 0.975])
boosted = [
    HistGradientBoostingRegressor(loss="quantile", quantile=share, max_iter=50, random_state=0)
    .fit(X_train, y_train)
    .predict(X_test)
    for share in q
]
_, ax = plt.subplots(figsize=(5, 4), layout="constrained")
IntervalCalibrationDisplay.from_estimator(model, X_test, y_test, kind="coverage", ax=ax)
IntervalCalibrationDisplay.from_predictions(
    # Quantiles of separate models can cross.
    y_test,
    np.sort(np.column_stack(boosted), axis=-1),
    q=q,
    kind="coverage",
    name="boosted quantiles",
    ax=ax,
)

# %%
# Row by row
# ----------

_, ax = plt.subplots(figsize=(9, 4), layout="constrained")
PredictionIntervalDisplay.from_estimator(model, X_test, y_test, random_state=0, ax=ax)

# %%
# Which columns matter?
# ---------------------
#
# Left: the standard deviation of each column divided by its length scale. Right: the loss of
# predictive log density after the column has been shuffled.

RelevanceDisplay.from_estimator(model, X_test, y_test, random_state=0)

# %%
# The shape of the function
# -------------------------
#
# Along one column, with joint samples from the posterior, and along two. The other columns stay at
# their medians.

PosteriorDisplay.from_estimator(model, X_train, "bmi", y=y_train, n_samples=5)
PosteriorDisplay.from_estimator(model, X_train, ["bmi", "s5"])

# %%
# The course of training
# ----------------------

TrainingDisplay.from_estimator(model)
plt.show()
