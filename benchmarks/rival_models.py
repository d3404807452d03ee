"""Rivals of rivals.py: classes with ``fit`` and ``distribution`` or ``predict``.

Models of this package have the time limit `budget`. Rivals end by themselves, and the seconds that
they took are in the line.
"""

import numpy as np
from compare_baselines import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split


class Rival:
    def __init__(self, budget, seed):
        self.seed = seed
        self.load()

    def tenth(self, X, y):
        return train_test_split(X, y, test_size=0.1, random_state=self.seed)


class CatBoostUncertainty(Rival):
    """Means and variances that boosting learns together."""

    def load(self):
        import catboost

        self.model = catboost.CatBoostRegressor(
            iterations=3000,
            learning_rate=0.06,
            loss_function="RMSEWithUncertainty",
            random_seed=self.seed,
            thread_count=1,
            verbose=False,
            allow_writing_files=False,
        )

    def fit(self, X, y):
        X, X_held, y, y_held = self.tenth(X, y)
        self.model.fit(X, y, eval_set=(X_held, y_held), early_stopping_rounds=100)
        return self

    def predict(self, X, return_std=True):
        mean, variance = self.model.predict(X).T
        return mean, np.sqrt(variance)


class LightGBMQuantiles(HistGradientBoostingRegressor):
    """Boosting for the mean, and once more for each quantile, each stopped early."""

    def __init__(self, budget, seed):
        import lightgbm

        self.lightgbm, self.seed = lightgbm, seed

    def boosted(self, X, y, held, **params):
        model = self.lightgbm.LGBMRegressor(
            n_estimators=1000,
            learning_rate=0.05,
            random_state=self.seed,
            n_jobs=1,
            verbose=-1,
            **params,
        )
        stop = self.lightgbm.early_stopping(50, verbose=False)
        return model.fit(X, y, eval_set=[held], callbacks=[stop])

    def fit(self, X, y):
        X, X_held, y, y_held = train_test_split(X, y, test_size=0.1, random_state=self.seed)
        held = X_held, y_held
        self.mean = self.boosted(X, y, held)
        self.std = np.sqrt(np.mean((y_held - self.mean.predict(X_held)) ** 2))
        self.models = [
            self.boosted(X, y, held, objective="quantile", alpha=level) for level in self.LEVELS
        ]
        return self


class NGBoostNormal(Rival):
    def load(self):
        import ngboost

        self.model = ngboost.NGBRegressor(random_state=self.seed, verbose=False)

    def fit(self, X, y):
        self.model.fit(X, y)
        return self

    def predict(self, X, return_std=True):
        found = self.model.pred_dist(X)
        return found.loc, found.scale


class GPBoostVecchia(Rival):
    APPROXIMATION = {"gp_approx": "vecchia", "num_neighbors": 20}

    def load(self):
        import gpboost

        self.gpboost = gpboost

    def fit(self, X, y):
        self.model = self.gpboost.GPModel(
            gp_coords=X,
            cov_function="matern_ard",
            cov_fct_shape=1.5,
            likelihood="gaussian",
            **self.APPROXIMATION,
        )
        self.model.fit(y=y)
        return self

    def predict(self, X, return_std=True):
        found = self.model.predict(gp_coords_pred=X, predict_var=True, predict_response=True)
        return found["mu"], np.sqrt(found["var"])


def _ours(estimator, seed, budget, **params):
    from skscalablegp import HeteroscedasticRegressor

    limit = budget.seconds
    return HeteroscedasticRegressor(estimator, random_state=seed, max_seconds=limit, **params)


class Tailed(HistGradientBoostingRegressor):
    """A model of ours with tails="auto", scored by the same quantiles as boosting."""

    def __init__(self, estimator, seed, budget):
        self.model = _ours(estimator, seed, budget, tails="auto")

    def fit(self, X, y):
        self.model.fit(X, y)
        return self

    def distribution(self, X):
        mean, std = self.model.predict(X, return_std=True)
        return dict(mean=mean, std=std, quantiles=self.model.predict_quantiles(X, self.LEVELS))


def HeteroscedasticTrees(budget, seed):
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting

    return _ours(Boosting(max_iter=400), seed, budget)


def HeteroscedasticDeep(budget, seed):
    from skscalablegp import SCGDDKLRegressor

    return _ours(SCGDDKLRegressor(), seed, budget)


def HeteroscedasticExperts(budget, seed):
    return _ours(None, seed, budget)


def HeteroscedasticStack(budget, seed):
    from skscalablegp import StackedGPRegressor

    return _ours(StackedGPRegressor(), seed, budget)


def HeteroscedasticTreesTails(budget, seed):
    from sklearn.ensemble import HistGradientBoostingRegressor as Boosting

    return Tailed(Boosting(max_iter=400), seed, budget)


def HeteroscedasticStackTails(budget, seed):
    from skscalablegp import StackedGPRegressor

    return Tailed(StackedGPRegressor(), seed, budget)
