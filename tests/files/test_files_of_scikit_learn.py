"""Files of models with parts of scikit-learn: around the package's estimators, and inside them."""

import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, RandomizedSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)

from skscalablegp import (
    AutoGPClassifier,
    AutoGPRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    LOVEPredictor,
    MeanFunctionRegressor,
    RFFRegressor,
    StackedGPRegressor,
    SVGPRegressor,
    load,
    save,
)
from skscalablegp.files import ModelFileError, register
from skscalablegp.metrics import neg_nlpd_scorer

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(60)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(category=RNG.choice(["x", "y", "zü"], 60))
MIXED = FRAME.assign(
    level=[f"level {k % 25}" for k in range(60)],
    day=pd.date_range("2020-01-01", periods=60),
    flag=X[:, 2] > 0,
)
MIXED.loc[3, "a"] = np.nan

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def gp(**params):
    return SVGPRegressor(n_inducing=8, max_iter=3, random_state=0, **params)


CASES = {
    "pipeline": (make_pipeline(StandardScaler(), gp()), X),
    "columns": (
        make_pipeline(
            ColumnTransformer(
                [("s", StandardScaler(), ["a", "b"]), ("o", OneHotEncoder(), ["category"])]
            ),
            gp(),
        ),
        FRAME,
    ),
    "search": (
        GridSearchCV(
            make_pipeline(SimpleImputer(), gp()), {"svgpregressor__n_inducing": [5, 9]}, cv=2
        ),
        X,
    ),
    "trees": (MeanFunctionRegressor(gp(), HistGradientBoostingRegressor(max_iter=9), n_folds=2), X),
    "trees of categories": (
        MeanFunctionRegressor(
            gp(), HistGradientBoostingRegressor(max_iter=9, categorical_features=[2]), n_folds=2
        ),
        np.column_stack([X[:, :2], np.arange(60) % 7]),
    ),
}
SLOW = {
    "kernels": (
        GridSearchCV(
            IterativeGPRegressor(random_state=0),
            {"kernel": [RBF() + WhiteKernel(), Matern() + WhiteKernel()]},
            cv=KFold(2),
            scoring=neg_nlpd_scorer,
        ),
        X,
    ),
    "random": (RandomizedSearchCV(gp(), {"alpha": [1e-6, 1e-3]}, n_iter=2, cv=2, scoring="r2"), X),
    "target": (TransformedTargetRegressor(gp(), transformer=QuantileTransformer(n_quantiles=9)), X),
    "outputs": (MultiOutputRegressor(gp()), X),
    "votes": (VotingRegressor([("a", gp()), ("b", Ridge())]), X),
    "stacking": (StackingRegressor([("a", gp()), ("b", Ridge())], cv=2), X),
    "bagging": (BaggingRegressor(gp(), n_estimators=2, random_state=0), X),
    "default mean": (MeanFunctionRegressor(gp(), n_folds=2), X),
    "all trees": (
        StackedGPRegressor(
            [
                ("gp", gp()),
                ("forest", RandomForestRegressor(5, random_state=0)),
                ("boosted", GradientBoostingRegressor(n_estimators=5, random_state=0)),
                ("extra", ExtraTreesRegressor(5, random_state=0)),
            ]
        ),
        X,
    ),
    "noise": (HeteroscedasticRegressor(make_pipeline(StandardScaler(), gp())), X),
    "frozen": (LOVEPredictor(FrozenEstimator(RFFRegressor(max_iter=3).fit(X, Y))), X),
    "automatic": (AutoGPRegressor(["linear", "exact"], random_state=0), MIXED),
    "classes": (AutoGPClassifier(["linear", "randomized_trees"], random_state=0), MIXED),
    "trees": (AutoGPRegressor(["trees"], random_state=0), MIXED),
    "classes by trees": (AutoGPClassifier(["trees"], random_state=0), MIXED),
}


def check_file(model, X, tmp_path):
    target = np.where(Y > 0, "yes", "no") if sklearn.base.is_classifier(model) else Y
    if isinstance(model, MultiOutputRegressor):
        target = np.column_stack([Y, -Y])
    model.fit(X, target)
    for compact in (False, True):
        save(model, tmp_path / "model", compact=compact)
        again = load(tmp_path / "model")
        for method in ("predict", "predict_std", "predict_proba"):
            if hasattr(model, method):
                assert_array_equal(getattr(again, method)(X), getattr(model, method)(X))
        assert repr(again) == repr(model)


@pytest.mark.parametrize("name", CASES)
def test_files(name, tmp_path):
    check_file(*CASES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_files(name, tmp_path):
    check_file(*SLOW[name], tmp_path)


def test_a_search_keeps_its_results(tmp_path):
    search = CASES["search"][0].fit(X, Y)
    save(search, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.best_params_ == search.best_params_
    assert_array_equal(again.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])
    assert (
        again.best_estimator_[-1].fit_report_.status
        == search.best_estimator_[-1].fit_report_.status
    )


def test_requests_of_metadata_are_kept(tmp_path):
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_pipeline(StandardScaler(), gp().set_fit_request(noise_variance=True))
        model.fit(X, Y, noise_variance=0.1)
        save(model, tmp_path / "model")
        again = load(tmp_path / "model").fit(X, Y, noise_variance=0.1)
    assert_array_equal(again.predict(X), model.predict(X))


def test_the_error_names_the_extra(tmp_path, monkeypatch):
    model = make_pipeline(StandardScaler(), gp())
    save(model, tmp_path / "model")
    for name in [name for name in sys.modules if name.partition(".")[0] == "skops"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skops", None)
    for do in (lambda: save(model, tmp_path / "other"), lambda: load(tmp_path / "model")):
        with pytest.raises(ImportError, match=r"pip install skscalablegp\[files\]"):
            do()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    save(gp(), tmp_path / "model")  # needs no skops
    assert load(tmp_path / "model").n_inducing == 8


def doubled(X):
    return 2 * X


def test_types_are_listed(tmp_path, stand_in):
    """What compiled code does not check, and code of one's own, is refused before it is written."""
    stand_in("_REGISTERED", {})
    model = make_pipeline(KNeighborsRegressor(algorithm="kd_tree")).fit(X, Y)
    with pytest.raises(TypeError, match="KDTree: fit with algorithm='brute'"):
        save(model, tmp_path / "model")
    brute = make_pipeline(KNeighborsRegressor(algorithm="brute")).fit(X, Y)
    save(brute, tmp_path / "model")
    assert_allclose(load(tmp_path / "model").predict(X), model.predict(X), atol=1e-12)
    (tmp_path / "model").unlink()
    model = make_pipeline(FunctionTransformer(doubled), gp())
    with pytest.raises(TypeError, match=r"doubled.*register"):
        save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    register(doubled)
    save(model.fit(X, Y), tmp_path / "model")
    assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))


def test_partial_functions_are_those_of_boosting_alone(tmp_path, stand_in, monkeypatch):
    model = make_pipeline(FunctionTransformer(partial(np.max, axis=1, keepdims=True)), gp())
    model.fit(X, Y)
    with pytest.raises(TypeError, match="functools.partial of <function max"):
        save(model, tmp_path / "model")
    # A file that was not written by save.
    stand_in("_is_foreign", lambda part: False)
    save(model, tmp_path / "model")
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match="a partial of <function max"):
        load(tmp_path / "model")


def test_types_that_a_file_claims_are_not_believed(tmp_path):
    """A file that lists more types than there may be is refused before skops reads it."""
    import skops.io as skops
    from files_forge import Forged

    class Loud(StandardScaler):
        pass

    Loud.__module__, Loud.__qualname__ = "antigravity", "Loud"
    save(make_pipeline(StandardScaler(), gp()), tmp_path / "model")
    forged = Forged(tmp_path / "model")
    data = skops.dumps(make_pipeline(StandardScaler(), Loud()))
    (name,) = [name for name in forged.header if forged.data[name][:2] == b"PK"]
    forged.put(name, np.frombuffer(data, np.uint8))
    content = forged.structure["model"]["scikit"]
    for types in ([], ["antigravity.Loud"], True):
        content["types"] = types
        with pytest.raises(ModelFileError):
            load(forged.write(tmp_path / "forged"))
    assert "antigravity" not in sys.modules
