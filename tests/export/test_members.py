"""Exports of models over members, of scikit-learn's estimators among them, and of classifiers."""

import json
import warnings
from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from export.exported import NEW, UNITS, X, Y, exact, marked_slow
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import skscalablegp as sk
from skscalablegp.export import (
    NotExportable,
    predictor_module,
    probability_module,
    translations,
)
from skscalablegp.likelihoods import Bernoulli
from skscalablegp.meta import BoostedClasses

# More rows than in the other tests, because a noise model needs a hundred errors.
RNG = np.random.RandomState(1)
LARGE = RNG.randn(240, 3) * UNITS + X.mean(0)
CLEAN = 20 * (np.sin(LARGE[:, 0]) + 0.1 * (LARGE[:, 1] - 100))
TARGET = CLEAN + 4 * np.exp(LARGE[:, 0]) * RNG.randn(240)
POINTS = sk.SGPRRegressor(n_inducing=15, max_iter=3, small_table="method")
SCALED_LINE = make_pipeline(StandardScaler(), RidgeCV())
RIDGE = Ridge()
FEW_TREES = HistGradientBoostingRegressor(max_iter=15, random_state=0)

MODELS = {
    "noise": sk.HeteroscedasticRegressor(POINTS, SCALED_LINE, residuals=2),
    "stack": sk.StackedGPRegressor(
        [("points", POINTS), ("line", SCALED_LINE), ("bayesian", BayesianRidge())]
    ),
    "noise-over-stack": sk.HeteroscedasticRegressor(
        sk.StackedGPRegressor([("points", POINTS), ("line", SCALED_LINE)]),
        LinearRegression(),
        residuals=2,
    ),
    "mean": sk.MeanFunctionRegressor(POINTS, SCALED_LINE, n_folds=2),
    "no-mean": sk.MeanFunctionRegressor(POINTS, FEW_TREES, weight=0.0, n_folds=2),
    "noise-of-bayesian": sk.HeteroscedasticRegressor(BayesianRidge(), RIDGE, residuals=2),
    "love": sk.LOVEPredictor(POINTS, variance_rank=3, max_variance_rank=5),
}
WITH_TREES = {
    "noise-of-trees": sk.HeteroscedasticRegressor(RandomForestRegressor(7), residuals=2),
    "noise-by-trees": sk.HeteroscedasticRegressor(
        POINTS, HistGradientBoostingRegressor(max_iter=9, max_depth=3), tails="auto"
    ),
    "stack-of-trees": sk.StackedGPRegressor(
        [("points", POINTS), ("line", SCALED_LINE), ("forest", ExtraTreesRegressor(9))]
    ),
    "noise-over-trees": sk.HeteroscedasticRegressor(
        sk.StackedGPRegressor([("points", POINTS), ("trees", FEW_TREES)])
    ),
    "mean-of-trees": sk.MeanFunctionRegressor(POINTS, FEW_TREES, n_folds=2),
    "stack-of-bayesian": sk.StackedGPRegressor(
        [("line", BayesianRidge()), ("trees", GradientBoostingRegressor(n_estimators=5))]
    ),
    "auto": sk.AutoGPRegressor(["linear", "randomized_trees", ("points", POINTS)]),
}
ALL = MODELS | WITH_TREES
FOREIGN = {
    "linear": LinearRegression(),
    "pipeline": SCALED_LINE,
    "sparse": Lasso(0.1),
    "bayesian": BayesianRidge(),
    "relevant": make_pipeline(StandardScaler(), ARDRegression(threshold_lambda=0.05)),
    "search": GridSearchCV(RIDGE, {"alpha": [1.0, 9.0]}, cv=2),
}
# What all trees see, and those that know missing values.
TREES = {
    "log-link": make_pipeline(HistGradientBoostingRegressor(loss="gamma", max_iter=9)),
    "gradient-boosting": GradientBoostingRegressor(n_estimators=6, loss="huber"),
    "search": GridSearchCV(DecisionTreeRegressor(), {"max_depth": [2, 4]}, cv=2),
    "one-leaf": DecisionTreeRegressor(max_depth=1, min_samples_leaf=200),
}
HOLES = {
    "boosting": FEW_TREES,
    "forest": RandomForestRegressor(6),
    "extra": ExtraTreesRegressor(6, max_depth=4),
    "tree": DecisionTreeRegressor(),
}
TREES_OF_CLASSES = {
    "boosting": HistGradientBoostingClassifier(max_iter=4),
    "averaged": BoostedClasses(),
    "forest": RandomForestClassifier(5),
    "extra": ExtraTreesClassifier(5, min_samples_leaf=2),
    "tree": DecisionTreeClassifier(max_depth=4),
    "gradient-boosting": GradientBoostingClassifier(n_estimators=4),
    "from-zero": GradientBoostingClassifier(n_estimators=4, init="zero"),
}
LINE = LogisticRegression()
CLASSIFIERS = {
    "inducing": sk.SVGPClassifier(n_inducing=15, max_iter=4),
    "inducing-many": make_pipeline(StandardScaler(), sk.SVGPClassifier(n_inducing=15, max_iter=4)),
    "probit": sk.SVGPClassifier(
        n_inducing=15, max_iter=4, likelihood=Bernoulli("probit"), feature_extractor=(5, 2)
    ),
    "sampled": sk.QSGPClassifier(n_components=50, max_iter=4),
    "sampled-many": sk.QSGPClassifier(n_components=50, max_iter=4),
    "auto": sk.AutoGPClassifier(
        [
            ("line", make_pipeline(StandardScaler(), LINE)),
            ("boosting", HistGradientBoostingClassifier(max_iter=5, random_state=0)),
            ("points", sk.QSGPClassifier(n_components=30, max_iter=2, optimizer=None)),
        ]
    ),
}
CLASSIFIERS["auto-many"] = CLASSIFIERS["auto"]
HALVES = np.where(TARGET > np.median(TARGET), "high", "low")
PARTS = np.digitize(TARGET, np.quantile(TARGET, [0.3, 0.6])) * 2


def quietly(model, X, y):
    """A copy, fitted without its warnings, with a seed."""
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


@cache
def fitted(name):
    return quietly(ALL[name], LARGE, TARGET)


@cache
def classifier(name):
    return quietly(CLASSIFIERS[name], LARGE, PARTS if "many" in name else HALVES)


def close(answer, expected, tol=1e-9):
    for found, right in zip(answer, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=tol * TARGET.std())


def any_rows(module, *rows):
    """The answers of the exported program, which takes any number of rows."""
    shapes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (torch.tensor(NEW),), dynamic_shapes=shapes).module()
    return [program(torch.tensor(some)) for some in rows]


def onnx_answers(path, rows):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": rows}), session


# ------------------------------------------------------------------ regressors


@pytest.mark.parametrize("name", MODELS)
def test_modules_predict_what_their_models_predict(name):
    model = fitted(name)
    for rows in (NEW, NEW[:1], LARGE):
        expected = model.predict(rows, return_std=True)
        close(sk.to_torch(model)(torch.tensor(rows)), expected)
        close([sk.to_torch(model, return_std=False)(torch.tensor(rows))], [expected[0]])


def test_the_models_have_what_is_tested():
    """A mixture of several members, and noise models of several kinds."""
    assert (fitted("stack").weights_ > 0).sum() > 1
    for name in ("noise", "noise-over-stack"):
        assert fitted(name).noise_gain_ > 0


def test_modules_have_the_least_variance():
    model = copy(fitted("noise"))
    middle = float(np.median(model.predict(NEW, return_std=True)[1]))
    scaled = model._learned
    noise = replace(scaled.noise, least=2 * np.log(middle))
    model._keep(replace(scaled, noise=noise))
    expected = model.predict(NEW, return_std=True)
    assert np.isclose(expected[1].min(), middle) and expected[1].max() > 1.1 * middle
    close(sk.to_torch(model)(torch.tensor(NEW)), expected)


@pytest.mark.parametrize("name", FOREIGN)
def test_mean_functions_of_scikit_learn(name):
    y = np.exp(TARGET / 50)
    model = quietly(sk.MeanFunctionRegressor(POINTS, FOREIGN[name], n_folds=2), LARGE, y)
    for rows in (NEW, LARGE):
        found = sk.to_torch(model, return_std=False)(torch.tensor(rows)).numpy()
        np.testing.assert_allclose(found, model.predict(rows), rtol=0, atol=1e-9 * y.std())


@pytest.mark.parametrize("name", [marked_slow(name, {"mean"}) for name in MODELS])
def test_programs_take_any_number_of_rows(name):
    module, rows = sk.to_torch(fitted(name)), (NEW[:7], NEW[:1])
    for some, answer in zip(rows, any_rows(module, *rows), strict=True):
        close(answer, [part.numpy() for part in module(torch.tensor(some))], 1e-10)


@pytest.mark.slow
@pytest.mark.seldom(
    "auto", "stack", "noise-over-trees", "noise-of-trees", "noise-of-bayesian", "stack-of-bayesian"
)
@pytest.mark.parametrize("name", ALL)
def test_onnx_files(name, tmp_path):
    sk.export_onnx(fitted(name), tmp_path / "model.onnx")
    for rows in (NEW, NEW[:1]):
        found, _ = onnx_answers(tmp_path / "model.onnx", rows)
        close(found, fitted(name).predict(rows, return_std=True), 1e-6)


@pytest.mark.night
@pytest.mark.slow
def test_trees_in_single_precision(tmp_path):
    """scikit-learn compares single precision, too, or rows that are exact in it."""
    members = ["linear", ("forest", RandomForestRegressor(7)), ("trees", FEW_TREES)]
    rows = LARGE.astype(np.float32).astype(float)
    model = quietly(sk.AutoGPRegressor(members), rows, TARGET)
    sk.export_onnx(model, tmp_path / "model.onnx", dtype="float32", rows=rows)
    found, _ = onnx_answers(tmp_path / "model.onnx", rows.astype(np.float32))
    close(found, model.predict(rows, return_std=True), 1e-4)


@pytest.mark.parametrize("name", ["noise", "mean", "noise-over-stack"])
def test_gradients_are_those_of_finite_differences(name):
    module, rows = sk.to_torch(fitted(name)), torch.tensor(NEW, requires_grad=True)
    (slope,) = torch.autograd.grad(sum(module(rows)).sum(), rows)
    for j, h in enumerate(1e-5 * torch.as_tensor(UNITS)):
        shift = h * torch.eye(3, dtype=torch.float64)[j]
        change = (sum(module(rows + shift)) - sum(module(rows - shift))) / (2 * h)
        error = (slope[:, j] - change).abs() * UNITS[j] / TARGET.std()
        assert error.median() < 1e-6 and slope[:, j].abs().max() > 0


@pytest.mark.parametrize("name", [marked_slow(n, {"mean-of-trees"}) for n in WITH_TREES])
def test_modules_of_trees_are_refused(name):
    for refused in (sk.to_torch, sk.as_botorch):
        with pytest.raises(NotExportable, match="gradient.* zero by construction: .*export_onnx"):
            refused(fitted(name))


def test_a_classifier_of_trees_is_refused():
    model = quietly(sk.AutoGPClassifier([("forest", RandomForestClassifier(3))]), LARGE, PARTS)
    with pytest.raises(NotExportable, match="RandomForestClassifier.* zero by construction"):
        sk.to_torch(model)


def test_draws_with_trees_have_values_and_no_gradients():
    """All draws have the same mean function, which is that of scikit-learn."""
    model = fitted("mean-of-trees")
    apart = copy(model)
    apart.weight_ = 0.0
    draws, below = sk.draw_functions(model, 3), sk.draw_functions(apart, 3)
    shift = model.weight_ * model.mean_function_.predict(NEW)
    close((draws.values(NEW) - below.values(NEW)).T, 3 * [shift])
    with pytest.raises(NotExportable, match="gradient.* zero by construction"):
        draws.gradients(NEW)


def near_thresholds(models, n=400):
    """Rows with entries at thresholds of the trees, and one unit of rounding away from them.

    Histograms of few rows have thresholds in the middle between two entries of the table.
    """
    ordered = np.sort(LARGE, 0)
    places = [(j, x) for row in (ordered[:-1] + ordered[1:]) / 2 for j, x in enumerate(row)]
    for grown in (np.ravel(getattr(model, "estimators_", [model])) for model in models):
        for tree in (estimator.tree_ for estimator in grown if hasattr(estimator, "tree_")):
            inner = np.isfinite(tree.threshold) & (tree.children_left >= 0)
            places += zip(tree.feature[inner], tree.threshold[inner], strict=True)
    rows = LARGE[RNG.randint(len(LARGE), size=n)]
    for row, place in zip(rows, RNG.randint(len(places), size=n), strict=True):
        feature, threshold = places[place]
        row[feature] = np.nextafter(threshold, RNG.choice([-np.inf, threshold, np.inf]))
    return rows


class SideBySide(torch.nn.Module):
    def __init__(self, regressors, classifiers):
        super().__init__()
        self.regressors = torch.nn.ModuleList(map(predictor_module, regressors))
        self.classifiers = torch.nn.ModuleList(map(probability_module, classifiers))

    def forward(self, X):
        means = [module.mean(X) for module in self.regressors]
        return *means, *(module(X) for module in self.classifiers)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_trees_in_files_are_those_of_scikit_learn(dtype, tmp_path):
    """At thresholds and beside them, with missing values, and far away."""
    table = np.where(RNG.uniform(size=LARGE.shape) < 0.3, np.nan, LARGE)
    y = np.exp(TARGET / 50)
    holes = [quietly(model, table, y) for model in HOLES.values()]
    regressors = [quietly(model, LARGE, y) for model in TREES.values()]
    exponential = GradientBoostingClassifier(n_estimators=4, loss="exponential")
    classes = [quietly(exponential, LARGE, PARTS > 0)]
    for name, model in TREES_OF_CLASSES.items():
        classes += [quietly(model, LARGE, PARTS)]
        classes += [quietly(model, LARGE, HALVES)] if "boosting" in name else []
    module = SideBySide([*holes, *regressors], classes).eval()
    shapes = ({0: torch.export.Dim("rows")},)
    X = torch.zeros(3, 3, dtype=getattr(torch, dtype))
    program = torch.onnx.export(
        module, (X,), dynamo=True, dynamic_shapes=shapes, custom_translation_table=translations()
    )
    program.save(tmp_path / "trees.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trees.onnx")
    near = near_thresholds([*holes, *regressors, *classes])
    for rows in (near, 1e3 * near, np.where(RNG.uniform(size=near.shape) < 0.3, np.nan, near)):
        rows = rows.astype(dtype)
        expected = [model.predict(rows) for model in holes]
        if np.isfinite(rows).all():
            expected += [model.predict(rows) for model in regressors]
            expected += [model.predict_proba(rows) for model in classes]
        found = session.run(None, {session.get_inputs()[0].name: rows})
        for answer, right in zip(found, expected, strict=False):
            tol = {"float64": 1e-12, "float32": 1e-5}[dtype] * np.abs(right).max()
            np.testing.assert_allclose(answer, right, rtol=0, atol=tol)


@pytest.mark.exact_input
def test_missing_values():
    """Columns with and without missing values in the fitted table, and others in new rows."""
    holes = RNG.uniform(size=LARGE.shape) < [0.2, 0.0, 0.1]
    table = np.where(holes, np.nan, LARGE)
    new = np.where(RNG.uniform(size=NEW.shape) < 0.3, np.nan, NEW)
    models = (
        sk.AutoGPRegressor(["linear"]),
        sk.AutoGPClassifier([("line", LINE)]),
    )
    regressor, classes = (
        quietly(m, table, y) for m, y in zip(models, (TARGET, PARTS), strict=True)
    )
    # Its noise model may have trees, which only standard deviations need.
    close([sk.to_torch(regressor, return_std=False)(torch.tensor(new))], [regressor.predict(new)])
    close([sk.to_torch(classes)(torch.tensor(new))], [classes.predict_proba(new)], 1e-12)


def test_searches():
    search = GridSearchCV(exact(RBF() + WhiteKernel(0.1)), {"alpha": [1e-6, 1.0]}, cv=2)
    model = make_pipeline(StandardScaler(), search).fit(X, Y)
    best = make_pipeline(model[0], search.best_estimator_)
    close(sk.to_torch(model)(torch.tensor(NEW)), best.predict(NEW, return_std=True))


# ------------------------------------------------------------------ classifiers


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_probabilities(name):
    model, rows = classifier(name), torch.tensor(NEW, requires_grad=True)
    module = sk.to_torch(model)
    found = module(rows)
    np.testing.assert_allclose(found.detach(), model.predict_proba(NEW), atol=1e-11)
    assert module.classes == model.classes_.tolist()
    (slope,) = torch.autograd.grad(found[:, 0].sum(), rows)
    step = 1e-6 * torch.tensor([1.0, 0, 0], dtype=torch.float64)
    change = (module(rows + step) - module(rows - step))[:, 0] / 2e-6
    assert (slope[:, 0] - change).abs().median() < 1e-6


@pytest.mark.parametrize("name", ["bayesian", "relevant"])
def test_variances_of_bayesian_regressions(name):
    model = quietly(FOREIGN[name], LARGE, TARGET)
    rows = model[:-1].transform(NEW) if name == "relevant" else NEW
    last = model[-1] if name == "relevant" else model
    _, variance, latent = predictor_module(last).moments(torch.tensor(rows))
    std = last.predict(rows, return_std=True)[1]
    np.testing.assert_allclose(variance.sqrt(), std, rtol=1e-9)
    assert not latent.any()


def test_a_member_that_lacks_a_class():
    model = quietly(sk.AutoGPClassifier([("line", LINE)]), LARGE, PARTS)
    few = clone(LINE).fit(LARGE[PARTS > 0], PARTS[PARTS > 0] // 2)
    model.estimators_, model.weights_ = [few, model.estimators_[0]], np.array([0.4, 0.6])
    found = sk.to_torch(model)(torch.tensor(NEW))
    np.testing.assert_allclose(found, model.predict_proba(NEW), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_as_programs_and_files(name, tmp_path):
    model, dtype = classifier(name), "float32" if name == "probit" else "float64"
    (few,) = any_rows(sk.to_torch(model), NEW[:4])
    np.testing.assert_allclose(few, model.predict_proba(NEW[:4]), atol=1e-10)
    sk.export_onnx(model, tmp_path / "model.onnx", dtype=dtype, rows=NEW)
    rows = NEW.astype(dtype)
    (found,), session = onnx_answers(tmp_path / "model.onnx", rows)
    tol = {"float32": 1e-4, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=tol)
    assert [output.name for output in session.get_outputs()] == ["probabilities"]
    classes = session.get_modelmeta().custom_metadata_map["classes"]
    assert json.loads(classes) == model.classes_.tolist()


# ------------------------------------------------------------------ refusals


def categories():
    frame = pd.DataFrame({"size": LARGE[:, 0], "town": np.where(LARGE[:, 1] > 100, "A", "B")})
    return quietly(sk.AutoGPRegressor(["linear"]), frame, TARGET)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: fitted_stack(GradientBoostingRegressor(n_estimators=2, init=LINE_ALONE)),
            "GradientBoostingRegressor.init=LinearRegression.*leave out init",
        ),
        (
            lambda: fitted_stack(KNeighborsRegressor()),
            "KNeighborsRegressor.*member",
        ),
        (lambda: fitted_stack(make_pipeline(PolynomialFeatures(), LINE_ALONE)), "Polynomial.*step"),
        (
            lambda: fitted_stack(
                HistGradientBoostingRegressor(max_iter=2, categorical_features=[0])
            ),
            "categorical_features",
        ),
        (categories, "'town' holds categories.*OneHotEncoder"),
        (
            lambda: quietly(sk.AutoGPClassifier([("bayes", GaussianNB())]), LARGE, PARTS),
            "GaussianNB.*LogisticRegression",
        ),
        (lambda: MLPClassifier(max_iter=1).fit(X, Y > 0), "MLPClassifier.*skscalablegp"),
    ],
)
def test_refusals_say_what_to_do(make, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    with pytest.raises(NotExportable, match=message):
        sk.to_torch(model)


LINE_ALONE = LinearRegression()


def fitted_stack(member):
    codes = np.column_stack([(LARGE[:, 0] > 0) * 1.0, LARGE[:, 1:]])
    return quietly(sk.StackedGPRegressor([("it", member)]), codes, TARGET)


@pytest.mark.slow
def test_probit_has_no_file_in_double_precision(tmp_path):
    with pytest.raises(NotExportable, match="float32"):
        sk.export_onnx(classifier("probit"), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
