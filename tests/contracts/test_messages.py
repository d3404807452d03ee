"""Errors and warnings of every public estimator name it, and the remedies that it has."""

import inspect
import re
import warnings

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skscalablegp
from skscalablegp.core import PARAMETERS, GPModel
from skscalablegp.kernels import Categorical, Columns
from skscalablegp.priors import LogNormal

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (30, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(30)

ESTIMATORS = [
    made
    for made in (getattr(skscalablegp, name) for name in skscalablegp.__all__)
    if inspect.isclass(made) and issubclass(made, GPModel)
]

# Values that scikit-learn's checks let pass, and that no fit can use.
SETTINGS = [
    {"kernel": WhiteKernel()},
    {"kernel": RBF([1.0, 1.0, 1.0])},
    {"kernel": RBF(np.nan)},
    {"kernel": Columns(RBF(), 5)},
    {"kernel": Columns(Categorical(), 0)},
    {"alpha": [0.1, 0.2]},
    {"n_targets": 2},
    {"optimizer": "nonsense"},
    {"solver": "nonsense"},
    {"likelihood": "nonsense"},
    {"inducing": "nonsense"},
    {"priors": {"nonsense": LogNormal()}},
    {"memory_budget": 1},
    {"device": "cuda:99"},
    {"callbacks": [3]},
    {"max_seconds": 1e-12, "callbacks": lambda step: True},
]


def target(cls):
    return (Y > 0).astype(int) if is_classifier(cls()) else Y


def said(call):
    """The messages of an error and of all warnings that this package gives."""
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            found.append(str(error))
    return found + [str(w.message) for w in caught if w.category is ConvergenceWarning]


def check(cls, messages):
    """Each names the estimator, and only parameters that it has, or another one that it names.

    Values are shown as users write them, without NumPy's types.
    """
    for message in messages:
        assert cls.__name__ in message, message
        assert not re.search(r"\bnp\.\w+\(", message), message
        named = [other for other in ESTIMATORS if other.__name__ in message]
        own = set().union(*(inspect.signature(other).parameters for other in named))
        words = set(re.findall(r"\b[a-z]+_\w+\b|\b[a-z]+(?==)", message))
        assert words & set(PARAMETERS) <= own, message


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
class TestMessages:
    def test_of_settings_that_a_fit_cannot_use(self, cls):
        for settings in SETTINGS:
            if set(settings) <= set(inspect.signature(cls).parameters):
                check(cls, said(lambda settings=settings: cls(**settings).fit(X, target(cls))))

    def test_of_tables(self, cls):
        y, model = target(cls), cls()
        for table in ((X * np.nan, y), (1e40 * X, y), (X, y[:-1]), (X, np.full(30, np.nan))):
            assert said(lambda table=table: model.fit(*table))
        if "noise_variance" in inspect.signature(model.fit).parameters:
            for wrong in (-1.0, "nonsense", [0.1, 0.2]):
                messages = said(lambda wrong=wrong: model.fit(X, y, noise_variance=wrong))
                assert messages and "noise_variance" in messages[0]
                check(cls, messages)

    def test_of_predictions(self, cls):
        model = cls()
        for name in ("max_iter", "max_epochs"):
            if name in model.get_params():
                model.set_params(**{name: 1})
        check(cls, said(lambda: model.fit(X, target(cls))))
        if is_classifier(model):
            return
        calls = {
            "return_std or return_cov": lambda: model.predict(X, True, True),
            "noise_variance": lambda: model.predict(X, True, noise_variance=-1.0),
            "include_noise": lambda: model.predict_std(X, False, 0.1),
            "q must": lambda: model.predict_quantiles(X, 1.5),
            "coverage": lambda: model.predict_interval(X, [0.5, 0.9]),
        }
        for about, call in calls.items():
            (message,) = said(call)
            assert about in message
            check(cls, [message])


def test_what_users_code_raises_passes_as_it_is():
    def callback(step):
        raise ValueError("of the user")

    for cls in (skscalablegp.IterativeGPRegressor, skscalablegp.LOVEPredictor):
        with pytest.raises(ValueError, match="^of the user$"):
            cls(callbacks=callback).fit(X, Y)


def test_labels_and_strings_are_shown_as_users_write_them():
    labels = np.array(["a"] * 30)
    for cls in ESTIMATORS:
        messages = said(lambda cls=cls: cls().fit(X, labels))
        assert "'a'" in messages[0]
        check(cls, messages)


@pytest.mark.parametrize("kernel", [None, RBF() + WhiteKernel()])
def test_a_limit_of_steps_is_not_said_to_end_after_more(kernel):
    """With a kernel, a small table is trained by two optimisers, of at most two steps each."""
    (message,) = said(lambda: skscalablegp.IterativeGPRegressor(kernel, max_iter=2).fit(X, Y))
    steps = int(re.search(r"(\d+) steps", message)[1])
    assert "max_iter=2 ended" in message
    assert (f"after {steps} steps" in message) == (steps <= 2)


def test_each_sentence_is_said_once():
    kernel = Columns(RBF(), 7)
    with pytest.raises(ValueError) as caught:
        skscalablegp.SGPRRegressor(kernel).fit(X, Y)
    assert str(caught.value).count("SGPRRegressor") == 1
