"""
=============================
Noise that depends on the row
=============================

A Gaussian process has one noise variance for all rows. If errors are larger for some rows than for
others, its 95 % intervals contain 95 % of the targets on average, but too many where errors are
small and too few where they are large. :class:`~skscalablegp.HeteroscedasticRegressor` learns where
errors are large, for any regressor.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_heteroscedastic.png"

# %%
# A simulated curve
# -----------------
#
# The noise grows to the right. The plain process learns the average noise, the second model the
# noise of each row. With ``n_refits=1`` the process is fitted once more, with rows weighted by the
# learned noise.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from skscalablegp import HeteroscedasticRegressor, IterativeGPRegressor
from skscalablegp.datasets import fetch_flights
from skscalablegp.metrics import nlpd

rng = np.random.default_rng(0)


def noise(x):
    return 0.03 + x**2


def draw(n):
    x = rng.uniform(size=n)
    return x[:, None], np.sin(6 * x) + noise(x) * rng.standard_normal(n)


X, y = draw(300)
X_new, y_new = draw(2000)
models = {
    "one noise": IterativeGPRegressor(random_state=0),
    "noise that depends on x": HeteroscedasticRegressor(
        IterativeGPRegressor(), n_refits=1, random_state=0
    ),
}
grid = np.linspace(0, 1, 200)
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    model.fit(X, y)
    ax.fill_between(grid, *model.predict_interval(grid[:, None]).T, alpha=0.3, label="95 %")
    ax.plot(grid, np.sin(6 * grid), color="black", lw=1, label="truth")
    for side in (-1, 1):
        ax.plot(grid, np.sin(6 * grid) + side * 1.96 * noise(grid), "k--", lw=0.8)
    ax.plot(X[:, 0], y, ".", ms=3, color="tab:red")
    score = nlpd(y_new, *model.predict(X_new, return_std=True))
    ax.set(title=f"{name}: NLPD {score:.2f}", xlabel="x")
axes[0].legend()
plt.show()

# %%
# How late will a flight arrive?
# ------------------------------
#
# Boosted trees predict the delay of flights without a standard deviation, which is learned here
# from their errors on held-out rows. ``tails="auto"`` also tries distributions with
# heavier tails than the normal.

flights, delay = fetch_flights(n_rows=6000, return_X_y=True)
columns = ["dep_delay", "day_of_year", "sched_clock_minutes", "distance", "wind_north", "precip"]
rows = flights[columns].fillna(flights[columns].median()).to_numpy(dtype=float)
delay = delay.to_numpy(dtype=float)
train, test = slice(0, 4000), slice(4000, None)

trees = HistGradientBoostingRegressor(max_iter=60, random_state=0)
learned = HeteroscedasticRegressor(trees, tails="auto", random_state=0)
learned.fit(rows[train], delay[train])
print(learned.fit_report_)

# %%
# Calibration before and after
# ----------------------------
#
# Flights are divided into groups of equal size by their predicted standard deviation, and the share
# of delays inside 90 % intervals is computed for each. Intervals of constant width contain too many
# delays where flights are predictable, and too few where they are not.

mean = learned.predict(rows[test])
std = learned.predict_std(rows[test])
constant = np.full(len(mean), np.sqrt(np.mean((delay[test] - mean) ** 2)))
low, high = learned.predict_interval(rows[test], 0.9).T
before = np.abs(delay[test] - mean) < 1.645 * constant
after = (delay[test] > low) & (delay[test] < high)
groups = np.array_split(np.argsort(std), 8)

fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
middle = [np.median(std[group]) for group in groups]
for inside, name in ((before, "one width"), (after, "learned")):
    ax.plot(middle, [inside[group].mean() for group in groups], "o-", label=name)
ax.axhline(0.9, color="black", lw=0.8)
ax.set(xlabel="learned standard deviation, minutes", ylabel="inside 90 % intervals", ylim=(0.5, 1))
ax.legend()
plt.show()
