"""Estimators of suite.py: classes with ``fit`` and ``distribution``, for frames and arrays.

``distribution`` gives means, standard deviations and perhaps quantiles, or probabilities. Rivals
that know categories get them; the others, and this package's members, get numbers: indicators of
at most 20 levels, target encoding above that, means in place of missing values beside an indicator,
standardised. `budget` is as in compare_baselines.py.
"""

import compare
import compare_baselines
import numpy as np
import rival_models
from compare_baselines import HistGradientBoostingRegressor as Quantiles
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

MOST_INDICATORS = 20


def sparing(X):
    """A frame whose dates are days, whose booleans are numbers, and whose other columns stay."""
    import pandas as pd

    if not isinstance(X, pd.DataFrame):
        return X
    X = X.copy()
    for name in X.columns:
        if pd.api.types.is_datetime64_any_dtype(X[name]):
            X[name] = (X[name] - pd.Timestamp(2000, 1, 1)) / pd.Timedelta(days=1)
        elif pd.api.types.is_bool_dtype(X[name]):
            X[name] = X[name].astype(float)
    return X


def categories(X):
    """Names of the columns that are no numbers."""
    return [*X.select_dtypes(exclude="number").columns] if hasattr(X, "columns") else []


def encoder(X, classes):
    """The usual columns of numbers for a frame, or for an array."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    if not hasattr(X, "columns"):
        return numbers
    names = categories(X)
    few = [name for name in names if X[name].nunique() <= MOST_INDICATORS]
    many = [name for name in names if name not in few]
    folds = KFold if classes == "continuous" else StratifiedKFold
    target = TargetEncoder(target_type=classes, cv=folds(5, shuffle=True, random_state=0))
    return make_column_transformer(
        (numbers, [name for name in X.columns if name not in names]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), few),
        (make_pipeline(target, StandardScaler()), many),
    )


def kind_of(y):
    if y.dtype.kind == "f":
        return "continuous"
    return "binary" if len(np.unique(y)) == 2 else "multiclass"


class Wrapped:
    """A model behind the columns that `columns` prepares; all else is asked of the model."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        self.model.fit(self.learned(X, y), y)
        return self

    def learned(self, X, y):
        return sparing(X)

    def seen(self, X):
        return sparing(X)

    def distribution(self, X):
        X = self.seen(X)
        if hasattr(self.model, "predict_proba"):
            return dict(proba=self.model.predict_proba(X))
        found = compare.predict(self.model, X)
        if hasattr(self.model, "predict_interval"):
            found["interval"] = self.model.predict_interval(X)
        return found

    def __getattr__(self, name):
        if name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


class AsItIs(Wrapped):
    """A model that brings its own encoding."""

    def learned(self, X, y):
        return X

    def seen(self, X):
        return X


class Encoded(Wrapped):
    """A model that needs numbers."""

    def learned(self, X, y):
        X = sparing(X)
        self.columns = encoder(X, kind_of(y))
        return np.ascontiguousarray(self.columns.fit_transform(X, y), dtype=float)

    def seen(self, X):
        return np.ascontiguousarray(self.columns.transform(sparing(X)), dtype=float)


# ------------------------------------------------------------------ regression


class _CatBoost(rival_models.CatBoostUncertainty):
    def fit(self, X, y):
        self.model.set_params(cat_features=categories(X))
        return super().fit(named(X), y)

    def predict(self, X, return_std=True):
        return super().predict(named(X))


def named(X):
    """CatBoost wants text in place of missing categories."""
    if names := categories(X):
        X = X.assign(**{name: X[name].astype(object).fillna("missing") for name in names})
    return X


def CatBoostUncertainty(budget, seed):
    return Wrapped(_CatBoost(budget, seed))


def LightGBMQuantiles(budget, seed):
    return Wrapped(rival_models.LightGBMQuantiles(budget, seed))


def HistGradientBoostingRegressor(budget, seed):
    return Wrapped(Quantiles(budget, seed))


class _NGBoost(rival_models.NGBoostNormal):
    def fit(self, X, y):
        X, X_held, y, y_held = self.tenth(X, y)
        self.model.fit(X, y, X_val=X_held, Y_val=y_held, early_stopping_rounds=50)
        return self


def NGBoostNormal(budget, seed):
    return Encoded(_NGBoost(budget, seed))


class _Forest(Quantiles):
    """The normal density has the width of the 95 % interval, and at least a twentieth."""

    def __init__(self, budget, seed):
        from quantile_forest import RandomForestQuantileRegressor

        self.model = RandomForestQuantileRegressor(
            min_samples_leaf=5, max_samples_leaf=None, random_state=seed, n_jobs=1
        )

    def fit(self, X, y):
        self.model.fit(X, y)
        return self

    def distribution(self, X):
        quantiles = self.model.predict(X, quantiles=[float(level) for level in self.LEVELS])
        std = np.maximum((quantiles[:, -1] - quantiles[:, 0]) / (2 * 1.96), 0.05)
        return dict(mean=self.model.predict(X, quantiles="mean"), std=std, quantiles=quantiles)


def QuantileForest(budget, seed):
    return Encoded(_Forest(budget, seed))


def GaussianProcessRegressor(budget, seed):
    return Encoded(compare_baselines.GaussianProcessRegressor(budget, seed))


def GPyTorchSVGP(budget, seed):
    return Encoded(compare_baselines.GPyTorchSVGP(budget, seed))


# ------------------------------------------------------------------ classification


class _Stopped:
    """A classifier that stops by a tenth of the rows."""

    def __init__(self, budget, seed):
        self.seed = seed
        self.load()

    def fit(self, X, y):
        # Without stratification a class might be in the tenth only.
        parts = train_test_split(X, y, test_size=0.1, random_state=self.seed, stratify=y)
        self.stopped(*parts)
        self.classes_ = self.model.classes_
        return self

    def predict_proba(self, X):
        return self.model.predict_proba(X)


class _CatBoostClasses(_Stopped):
    def load(self):
        import catboost

        self.model = catboost.CatBoostClassifier(
            iterations=3000,
            learning_rate=0.06,
            random_seed=self.seed,
            thread_count=1,
            verbose=False,
            allow_writing_files=False,
        )

    def stopped(self, X, X_held, y, y_held):
        self.model.set_params(cat_features=categories(X))
        held = named(X_held), y_held
        self.model.fit(named(X), y, eval_set=held, early_stopping_rounds=100)

    def predict_proba(self, X):
        return self.model.predict_proba(named(X))


class _LightGBMClasses(_Stopped):
    def load(self):
        import lightgbm

        self.stop = lightgbm.early_stopping(50, verbose=False)
        self.model = lightgbm.LGBMClassifier(
            n_estimators=1000, learning_rate=0.05, random_state=self.seed, n_jobs=1, verbose=-1
        )

    def stopped(self, X, X_held, y, y_held):
        self.model.fit(X, y, eval_set=[(X_held, y_held)], callbacks=[self.stop])


def CatBoostClassifier(budget, seed):
    return Wrapped(_CatBoostClasses(budget, seed))


def LightGBMClassifier(budget, seed):
    return Wrapped(_LightGBMClasses(budget, seed))


def HistGradientBoostingClassifier(budget, seed):
    from sklearn.ensemble import HistGradientBoostingClassifier as Boosting

    return Wrapped(Boosting(early_stopping=True, max_iter=1000, random_state=seed))


def LogisticRegression(budget, seed):
    from sklearn.linear_model import LogisticRegression as Logistic

    return Encoded(Logistic(max_iter=1000))
