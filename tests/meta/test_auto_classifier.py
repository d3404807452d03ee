"""AutoGPClassifier: calibrated probabilities, weights and temperature from unseen rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from skscalablegp import AutoGPClassifier, SVGPClassifier
from skscalablegp.meta import BoostedClasses


def table(n=300, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    score = X[:, 0] + np.sin(2 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    return X, np.digitize(score, np.linspace(-1, 1, classes + 1)[1:-1])


class Overconfident(ClassifierMixin, BaseEstimator):
    """Logistic regression whose log odds are multiplied by a factor."""

    def __init__(self, factor=8.0):
        self.factor = factor

    def fit(self, X, y):
        self.line_ = LogisticRegression().fit(X, y)
        self.classes_ = self.line_.classes_
        return self

    def predict_proba(self, X):
        odds = np.exp(-self.factor * self.line_.decision_function(X))
        return np.column_stack([odds, np.ones(len(X))]) / (1 + odds)[:, None]

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


def test_boosted_classes_average_trees_with_other_held_out_rows():
    X, y = table(400, 3)
    model = BoostedClasses(random_state=0).fit(X, np.array(list("abc"))[y])
    assert model.classes_.tolist() == list("abc")
    assert [each.early_stopping for each in model.trees_] == [True] * 5
    assert len({each.n_iter_ for each in model.trees_}) > 1
    single = [each.predict_proba(X) for each in model.trees_]
    assert_allclose(model.predict_proba(X), sum(single) / 5)
    new, labels = table(4000, 3, seed=1)
    losses = [log_loss(labels, each.predict_proba(new)) for each in model.trees_]
    assert log_loss(labels, model.predict_proba(new)) < np.mean(losses)
    assert not model.cut_ and len(model.fit(X, y, max_seconds=0.0).trees_) == 1 and model.cut_


def test_boosted_classes_with_a_class_of_one_row_hold_nothing_out():
    X, y = table(100, 2)
    X[:, 0], y[0] = np.arange(100) % 7, 2
    model = BoostedClasses(random_state=0, categorical_features=[0]).fit(X, y)
    assert [each.n_iter_ for each in model.trees_] == [100]
    assert model.trees_[0].is_categorical_.tolist() == [True, False]
    assert model.predict_proba(X).shape == (100, 3)


class Broken(Overconfident):
    def predict_proba(self, X):
        return np.full((len(X), 2), np.nan)


@pytest.fixture(scope="module")
def small():
    X, y = table(150)
    return AutoGPClassifier(["linear", "trees", "inducing"], random_state=0).fit(X, y), X, y


def test_it_predicts_well(small):
    model, _, _ = small
    X, y = table(1000, seed=1)
    linear = LogisticRegression().fit(*table(150))
    assert log_loss(y, model.predict_proba(X)) < log_loss(y, linear.predict_proba(X))
    assert_allclose(model.predict_proba(X).sum(1), 1)


@pytest.mark.slow
@pytest.mark.exact_input
def test_refits_repeat(small):
    model, X, y = small
    again = clone(model).fit(X, y)
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*max_iter")
@pytest.mark.parametrize("classes", [2, 3])
def test_few_rows_have_quick_folds(classes):
    """A few steps give about the probabilities of many, as folds need them."""
    X, y = table(150, classes)
    some = np.arange(len(X)) % 5 > 0
    fresh = SVGPClassifier(random_state=0)
    model = AutoGPClassifier([("linear", LogisticRegression())], random_state=0).fit(X, y)
    quick = model._fixed(fresh, clone(fresh).fit(X, y)).fit(X[some], y[some])
    slow = clone(quick).set_params(max_iter=200, variational_learning_rate=0.1)
    slow.fit(X[some], y[some])
    gaps = quick.predict_proba(X[~some]) - slow.predict_proba(X[~some])
    assert np.abs(gaps).mean() < 0.02 and np.abs(gaps).max() < 0.12
    # A score costs as much as a step.
    assert len(quick.history_["iteration"]) <= 1 + -(-quick.n_iter_ // 4)
    assert quick.n_iter_ <= 10


def test_the_temperature_calms_overconfident_members():
    X, y = table(1500)
    members = [("bold", Overconfident())]
    model = AutoGPClassifier(members, random_state=0).fit(X, y)
    assert 4 < model.temperature_ < 12
    raw = log_loss(y, model.held_out_proba_)
    logs = np.log(np.maximum(model.held_out_proba_, 1e-6)) / model.temperature_
    calm = np.exp(logs) / np.exp(logs).sum(1, keepdims=True)
    assert log_loss(y, calm) < 0.7 * raw


def test_held_out_probabilities_are_of_unseen_rows():
    X, y = table(2600)
    model = AutoGPClassifier([("line", LogisticRegression())], random_state=0).fit(X, y)
    held = model.held_out_
    rest = np.setdiff1d(np.arange(len(X)), held)
    line = LogisticRegression().fit(X[rest], y[rest])
    assert_allclose(model.held_out_proba_, line.predict_proba(X[held]), rtol=1e-6)
    assert_allclose(model.leaderboard_["line"].nll, log_loss(y[held], line.predict_proba(X[held])))
    # All rows have been fitted at the end.
    whole = LogisticRegression().fit(X, y)
    assert_allclose(model.estimators_[0].coef_, whole.coef_, rtol=1e-6)


class OneColumn(ClassifierMixin, BaseEstimator):
    """Logistic regression on one column."""

    def __init__(self, column=0):
        self.column = column

    def fit(self, X, y):
        self.line_ = LogisticRegression().fit(X[:, [self.column]], y)
        self.classes_ = self.line_.classes_
        return self

    def predict_proba(self, X):
        return self.line_.predict_proba(X[:, [self.column]])

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


@pytest.mark.parametrize("weight, mixed", [(0.46, True), (0.0, False)])
def test_a_mixture_of_classes_must_gain_a_thousandth(weight, mixed):
    """More than that is enough, also where the rows do not show it clearly."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((400, 2))
    y = (X @ [1.0, weight] + 0.5 * rng.standard_normal(400) > 0).astype(int)
    members = [("first", OneColumn(0)), ("second", OneColumn(1))]

    def held_out(members):
        model = AutoGPClassifier(members, random_state=0).fit(X, y)
        return model, model.held_out_proba_[np.arange(len(y)), y]

    model, both = held_out(members)
    single = max((held_out([each])[1] for each in members), key=lambda p: np.log(p).mean())
    gains = np.log(both) - np.log(single)
    assert len(model.members_) == 1 + mixed
    assert gains.mean() > 1e-3 if mixed else gains.mean() == 0
    assert gains.mean() < gains.std() / np.sqrt(len(gains)) or not mixed


def test_several_classes_and_labels():
    X, y = table(400, classes=3)
    labels = np.array(["low", "middle", "high"])[y]
    model = AutoGPClassifier(["linear", "randomized_trees"], random_state=0).fit(X, labels)
    assert list(model.classes_) == ["high", "low", "middle"]
    assert model.score(X, labels) > 0.7
    assert model.predict_proba(X).shape == (400, 3)


def test_a_class_of_one_row():
    X, y = table(120)
    y = y + 0
    y[0] = 2
    model = AutoGPClassifier(["linear"], random_state=0).fit(X, y)
    assert model.predict_proba(X).shape == (120, 3)
    assert np.isfinite(model.predict_proba(X)).all()


def test_a_bad_member_is_dropped():
    X, y = table(100)
    model = AutoGPClassifier(["linear", ("broken", Broken())], random_state=0).fit(X, y)
    assert model.members_ == ["linear"]
    assert "not finite" in model.leaderboard_["broken"].note


def test_wrong_members_and_classes():
    X, y = table(60)
    with pytest.raises(ValueError, match="predict_proba"):
        from sklearn.linear_model import Ridge

        AutoGPClassifier([("ridge", Ridge())]).fit(X, y)
    with pytest.raises(ValueError, match="one class"):
        AutoGPClassifier().fit(X, np.zeros(60))
