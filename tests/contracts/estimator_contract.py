"""The contract of all public estimators: one table and one suite.

A new estimator joins with one `Row` in ``ROWS`` of ``tests/contracts/test_contract.py``; what it
cannot do is said in the row, never in a test. scikit-learn's own checks run over the same table.
"""

import inspect
import io
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import array_api_strict
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
import torch
from contracts.cases import Contract, needs, on_all_rows, once_a_base, once_a_class
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtri
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    Matern,
    PairwiseKernel,
    WhiteKernel,
)
from sklearn.impute import IterativeImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
)

from skscalablegp import load, save
from skscalablegp.kernels import Categorical, Columns, LowRankCategorical, ThetaPrior
from skscalablegp.metrics import coverage_scorer
from skscalablegp.priors import LogNormal

N, M, D = 24, 7, 2

# Fields of a `Row` that say what a regressor can do, and a classifier.
CAPABILITIES = {"multi_output", "independent_targets", "covariances", "samples", "noise_variance"}
CAPABILITIES |= {"multi_class"}


@dataclass(frozen=True)
class Row:
    """One estimator in the table.

    Parameters
    ----------
    name : str
        Shown in the test's id.
    estimator : estimator
        Cloned for each test; a fit on 100 rows takes well under half a second.
    classifier, multi_output, covariances, samples, noise_variance : bool
        What it can do: be a classifier, take y of shape (n, t), ``return_cov``, ``sample_y``,
        ``fit(..., noise_variance=)``. A classifier has none of the others.
    multi_class : bool
        Whether a classifier takes more than two classes.
    independent_targets : bool
        Whether each of several targets is fitted as alone; relevance vectors are shared.
    prior, any_kernel : bool
        Whether it predicts before a fit, and takes kernels that only have NumPy code.
    batch_rtol : float
        How far the prediction for one row may be from that in a batch, relative to y's scale.
    unit_atol : float
        How far predictions from a + b y may be from a + b times those from y, in standard
        deviations of the target.
    std_rtol : float
        How far ``return_std`` may be from the diagonal of ``return_cov``: sampled ones differ.
    repeat_rtol : float
        How far a second prediction may be from the first, relative to the largest number. Iterative
        solves of single rows end at a tolerance, which rounding passes a step earlier or later.
    columns : {"categories", "numbers", "none", ""}
        What kernels on columns it takes: all, all but those of categories, or none. Empty where a
        second regressor sees all columns whatever the kernel does.
    stands_for_its_class : bool
        Whether this is the row of its class on which scikit-learn's own checks run, and the cases
        that no setting reaches. One row of each class is; its settings reach the real path.
    stands_for_its_base : bool
        Whether it is the first choice where a quick run has one row of each base class.
    missing : bool
        Whether X may have missing values and text.
    search : mapping
        Parameters for a grid search, two values each.
    limit : mapping
        One parameter and a value of it that cuts the training short of convergence.
    no_limit : str
        Why there is no such parameter.
    """

    name: str
    estimator: BaseEstimator
    classifier: bool = False
    multi_output: bool = True
    independent_targets: bool = True
    covariances: bool = True
    samples: bool = True
    noise_variance: bool = True
    multi_class: bool = True
    prior: bool = False
    any_kernel: bool = False
    batch_rtol: float = 1e-6
    unit_atol: float = 1e-6
    std_rtol: float = 1e-4
    repeat_rtol: float = 0.0
    columns: str = "categories"
    stands_for_its_class: bool = False
    stands_for_its_base: bool = False
    missing: bool = False
    search: Mapping[str, list[Any]] = field(default_factory=dict)
    limit: Mapping[str, Any] = field(default_factory=dict)
    no_limit: str = ""

    @property
    def gaussian(self) -> bool:
        """Whether predictive distributions are normal."""
        return self.estimator.get_params().get("likelihood", "gaussian") == "gaussian"

    def has(self, name: str) -> bool:
        """Whether the estimator is, can do or takes what a case needs.

        That is "regressor" or "classifier", a capability or another field of this row, or a
        parameter of the constructor.
        """
        if name in ("regressor", "classifier"):
            return self.classifier == (name == "classifier")
        if name == "partial_fit":  # kernel functions at the rows have no more to add
            fixed = self.estimator.get_params().get("basis") == "rows"
            return hasattr(self.estimator, name) and not fixed
        if name in CAPABILITIES:
            return getattr(self, name) and self.classifier == (name == "multi_class")
        if name in {field.name for field in fields(self)}:
            return bool(getattr(self, name))
        return name in self.estimator.get_params(deep=False)

    def new(self, **params: Any) -> BaseEstimator:
        """A fresh estimator with a fixed seed."""
        model = clone(self.estimator)
        if "random_state" in model.get_params():
            params.setdefault("random_state", 0)
        return model.set_params(**params)

    def with_kernel(self, kernel: Any) -> BaseEstimator:
        """A fresh estimator with this kernel, or one whose estimator below has it."""
        if "kernel" in self.estimator.get_params(deep=False):
            return self.new(kernel=kernel)
        return self.new(estimator__kernel=kernel)

    def target(self, f: np.ndarray) -> np.ndarray:
        """Real values as this estimator's kind of target."""
        return (f > np.median(f)).astype(int) if self.classifier else f

    def everything(self, model: BaseEstimator, X: Any) -> list[np.ndarray]:
        """All that a fitted model can say about X."""
        if self.classifier:
            return [model.predict(X), model.predict_proba(X)]
        out = [model.predict(X), *model.predict(X, return_std=True), model.predict_std(X)]
        if self.covariances:
            out.append(model.predict(X, return_cov=True)[1])
        if self.samples:
            out.append(model.sample_y(X, n_samples=3, random_state=1))
        return out


def table(seed: int = 0, n: int = N, d: int = D) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A small smooth problem: X of shape (n, d), y of shape (n,), and M new rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    y = np.sin(2 * X[:, 0]) + 0.5 * X.sum(1) + 0.1 * rng.standard_normal(n)
    return X, y, rng.uniform(-2, 2, (M, d))


def fitted(row: Row, **params: Any) -> tuple[BaseEstimator, np.ndarray]:
    X, y, X_new = table()
    return row.new(**params).fit(X, row.target(y)), X_new


_SHARED: dict[str, tuple[BaseEstimator, np.ndarray]] = {}


def shared(row: Row) -> tuple[BaseEstimator, np.ndarray]:
    """As `fitted`, but one model for all tests that only read it."""
    if row.name not in _SHARED:
        _SHARED[row.name] = fitted(row)
    return _SHARED[row.name]


def copied(row: Row) -> tuple[BaseEstimator, np.ndarray]:
    """As `fitted`, from a pickle of the shared model."""
    model, X_new = shared(row)
    return pickle.loads(pickle.dumps(model)), X_new


class _Whole(pickle.Pickler):
    def persistent_id(self, obj: Any) -> None:
        assert not isinstance(obj, np.ndarray) or obj.flags.forc, (obj.shape, obj.strides)


def whole(model: BaseEstimator) -> bytes:
    """A pickle, if all arrays are whole: it keeps no other strides, with which sums round alike."""
    kept = io.BytesIO()
    _Whole(kept).dump(model)
    return kept.getvalue()


# Settings that no fit can use; some are seen only after the work on the table has begun.
UNFIT = [
    {"alpha": np.ones(3)},
    {"solver": "magic"},
    {"device": "toaster"},
    {"kernel": CompoundKernel([RBF()])},
    {"n_targets": 2},
    {"memory_budget": 100, "solver": "cholesky"},
]


def _columns_of(kernel: Any) -> list[Any]:
    """The columns on which the kernels of an expression depend."""
    parts = [kernel, *kernel.get_params().values()]
    return [c for p in parts if isinstance(p, Columns) for c in np.atleast_1d(p.columns).tolist()]


def assert_all_equal(left: list[np.ndarray], right: list[np.ndarray], rtol: float = 0.0) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if rtol:
            assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())
        else:
            assert_array_equal(a, b)


def assert_sane(row: Row, model: BaseEstimator, X: Any) -> None:
    """Predictions are finite float64 and say how uncertain they are."""
    if row.classifier:
        proba = model.predict_proba(X)
        assert proba.dtype == np.float64 and proba.shape == (len(X), len(model.classes_))
        assert (proba >= 0).all()
        assert_allclose(proba.sum(1), 1, rtol=1e-6)
        assert_array_equal(model.predict(X), model.classes_[proba.argmax(1)])
        return
    mean, std = model.predict(X, return_std=True)
    assert mean.dtype == std.dtype == np.float64
    assert mean.shape == std.shape
    assert np.isfinite(mean).all() and np.isfinite(std).all()
    assert (std >= 0).all()


def frame(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with a column of categories, one that no kernel is given, and a target."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(-2, 2, (N, 2)), columns=["a", "other"])
    X["category"] = rng.integers(0, 3, N)
    y = np.sin(2 * X["a"]) + np.array([-1.0, 2.0, 0.3])[X["category"]]
    return X, y.to_numpy() + 0.1 * rng.standard_normal(N)


@pytest.mark.usefixtures("remembered_starts")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
class EstimatorContract(Contract):
    """The suite over all rows."""

    # ------------------------------------------------------------ scikit-learn's own rules

    @once_a_class
    def test_parameters_are_validated(self, row):
        check_param_validation(type(row.estimator).__name__, row.new())

    @pytest.mark.slow
    @once_a_class
    def test_column_names_are_checked(self, row):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_dataframe_column_names_consistency(type(row.estimator).__name__, row.new())
        assert not [w for w in caught if "feature names" in str(w.message)]

    @on_all_rows
    def test_tags(self, row):
        tags = get_tags(row.estimator)
        assert not tags.non_deterministic
        assert not tags.no_validation
        assert not tags._skip_test
        assert tags.requires_fit is not row.prior
        assert not tags.input_tags.sparse
        if not row.classifier:
            assert not tags.regressor_tags.poor_score
            assert tags.target_tags.multi_output == row.multi_output

    def test_every_parameter_and_attribute_is_documented(self, row):
        doc = inspect.getdoc(type(row.estimator))
        model, _ = shared(row)
        learned = [name for name in vars(model) if name.endswith("_") and name[0] != "_"]
        for name in [*model.get_params(deep=False), *learned, "feature_names_in_"]:
            # "a, b : type" documents both.
            assert re.search(rf"^(\w+, )*{re.escape(name)}(, \w+)* : ", doc, re.M), name

    @once_a_class
    def test_html_and_text_repr(self, row):
        model, _ = shared(row)
        assert type(model).__name__ in repr(model)
        assert type(model).__name__ in model._repr_html_()

    # ------------------------------------------------------------ shapes and types

    @on_all_rows
    @needs("regressor")
    def test_shapes(self, row):
        self.check_shapes(row, None)

    @once_a_base
    @needs("multi_output")
    def test_shapes_of_one_column_of_targets(self, row):
        self.check_shapes(row, 1)

    @needs("multi_output")
    def test_shapes_of_several_targets(self, row):
        self.check_shapes(row, 3)

    def check_shapes(self, row, t):
        X, y, X_new = table()
        model = row.new().fit(X, y if t is None else np.column_stack([y, y**2, -y])[:, :t])
        wide = () if t in (None, 1) else (t,)
        mean, std = model.predict(X_new, return_std=True)
        assert mean.shape == std.shape == model.predict_std(X_new).shape == (M, *wide)
        assert mean.dtype == std.dtype == np.float64
        if row.covariances:
            cov = model.predict(X_new, return_cov=True)[1]
            assert cov.shape == (M, M, *wide) and cov.dtype == np.float64
            scale = np.max(std) ** 2
            spread = np.sqrt(np.einsum("ii...->i...", cov))
            assert_allclose(spread, std, atol=row.std_rtol * scale**0.5)
            assert_allclose(cov, np.swapaxes(cov, 0, 1), atol=row.batch_rtol * scale)
        if row.samples:
            draws = model.sample_y(X_new, n_samples=5)
            assert draws.shape == (M, *wide, 5) and draws.dtype == np.float64
        assert model.predict_interval(X_new).shape == (M, *wide, 2)
        assert model.predict_quantiles(X_new, 0.5).shape == (M, *wide)
        assert model.predict_quantiles(X_new, [0.1, 0.5, 0.6]).shape == (M, *wide, 3)
        # Known noise of every row, and of every row and target.
        noise = np.arange(1.0, M + 1)
        known = noise[:, None] * np.ones(wide) if wide else noise
        each = known * (1 + np.arange(t)) if wide else noise[:, None]
        for given, expected in ((noise, known), (each, each.reshape(std.shape))):
            noisy = model.predict_std(X_new, noise_variance=given)
            assert_allclose(noisy, np.sqrt(std**2 + expected), rtol=1e-6)
            ends = model.predict_interval(X_new, 0.5, noise_variance=given)
            assert (ends[..., 1] > ends[..., 0]).all()
            if row.covariances:
                noisy = model.predict(X_new, return_cov=True, noise_variance=given)[1]
                added = np.einsum("ii...->i...", noisy - cov)
                assert_allclose(added, expected, rtol=1e-6)
                assert_array_equal(noisy[0, 1:], cov[0, 1:])
            if row.samples:
                draws = model.sample_y(X_new, 200, noise_variance=1e8 * np.asarray(given))
                spread = draws.std(-1) / np.sqrt(1e8 * expected)
                assert ((spread > 0.6) & (spread < 1.6)).all()

    @needs("regressor", "multi_output", "independent_targets", "optimizer")
    def test_targets_are_independent_columns(self, row):
        X, y, X_new = table()
        Y = np.column_stack([y, np.cos(y)])
        both = row.new(optimizer=None).fit(X, Y).predict(X_new)
        for column in range(2):
            alone = row.new(optimizer=None).fit(X, Y[:, column]).predict(X_new)
            assert_allclose(both[:, column], alone, rtol=0.02, atol=0.02)

    @pytest.mark.exact_input
    @once_a_base
    def test_float32_input(self, row):
        X, y, X_new = table()
        X32, y32 = X.astype(np.float32), row.target(y)
        if not row.classifier:
            y32 = y32.astype(np.float32)
        model = row.new().fit(X32, y32)
        assert_sane(row, model, X_new.astype(np.float32))
        same = row.new().fit(X32.astype(np.float64), y32.astype(float))
        if not row.classifier:
            assert_allclose(model.predict(X_new), same.predict(X_new), rtol=1e-3, atol=1e-3)

    @once_a_base
    def test_integers_and_lists(self, row):
        X, y, _ = table()
        Xi = np.round(3 * X).astype(int)
        target = row.target(y)
        model = row.new().fit(Xi.tolist(), target.tolist())
        assert_array_equal(model.predict(Xi[:3].tolist()), model.predict(Xi[:3].astype(float)))

    @pytest.mark.fresh_starts
    @once_a_base
    def test_memory_layout_does_not_matter(self, row):
        X, y, X_new = table()
        y = row.target(y)
        model, _ = shared(row)
        # Backwards and back again: the strides of a data frame whose columns were reordered.
        backwards = np.asfortranarray(X[:, ::-1])[:, ::-1]
        other = row.new().fit(backwards, np.repeat(y, 2)[::2])
        assert_allclose(
            other.predict(np.repeat(X_new[::-1], 2, axis=0)[::-2]),
            model.predict(X_new),
            rtol=row.batch_rtol,
            atol=row.batch_rtol,
        )

    @once_a_base
    @pytest.mark.parametrize(
        "library, dispatch",
        [
            ("torch", False),
            ("array_api_strict", True),
            pytest.param("torch", True, marks=pytest.mark.slow),
            pytest.param("array_api_strict", False, marks=pytest.mark.slow),
        ],
    )
    def test_arrays_of_other_libraries(self, row, library, dispatch):
        array = torch.tensor if library == "torch" else array_api_strict.asarray
        X, y, X_new = table()
        y = row.target(y)
        expected = row.everything(shared(row)[0], X_new)
        with sklearn.config_context(array_api_dispatch=dispatch):
            model = row.new().fit(array(X), array(y))
            seen = row.everything(model, array(X_new))
            score = model.score(array(X), array(y))
        assert_all_equal(seen, expected, row.repeat_rtol)
        assert score == pytest.approx(model.score(X, y), rel=max(row.repeat_rtol, 1e-15))

    @pytest.mark.exact_input
    @once_a_base
    def test_frames(self, row):
        X, y, X_new = table()
        y = row.target(y)
        plain = shared(row)[0].predict(X_new)
        for frame, column in ((pd.DataFrame, pd.Series), (pl.DataFrame, pl.Series)):
            cols = ["a", "b"]
            model = row.new().fit(frame(dict(zip(cols, X.T, strict=True))), column(y))
            new = frame(dict(zip(cols, X_new.T, strict=True)))
            assert_allclose(model.predict(new), plain, rtol=1e-6, atol=1e-6)
            # An older scikit-learn cannot read the names of every newer frame.
            if not hasattr(LinearRegression().fit(new, np.zeros(len(X_new))), "feature_names_in_"):
                continue
            assert_array_equal(model.feature_names_in_, cols)
            with pytest.raises(ValueError, match="feature names"):
                model.predict(new[["b", "a"]])
            with pytest.warns(UserWarning, match="does not have valid feature names"):
                model.predict(X_new)

    # ------------------------------------------------------------ odd tables

    @needs("regressor")
    def test_one_row(self, row):
        X, y, X_new = table()
        try:
            model = row.new().fit(X[:1], y[:1])
        except ValueError as error:
            assert re.search("1 sample|n_samples ?= ?1|one row|1 row", str(error))
        else:
            assert_sane(row, model, X_new)

    @once_a_class
    @needs("regressor")
    def test_one_row_leaves_the_deviation_of_the_prior(self, row):
        """The row's own mean is subtracted, so that it tells nothing of any variance."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                model = type(row.estimator)().fit([[1.0, 2.0]], [5.0])
            except ValueError as error:
                assert "1 sample" in str(error)
                return
            mean, std = model.predict([[50.0, 0.0]], return_std=True)
        assert_allclose(mean, 5.0)
        # The prior has variance one, with or without as much noise.
        assert 0.99 < std[0] < 2**0.5 + 0.01

    def test_one_column(self, row):
        X, y, X_new = table(d=1)
        assert_sane(row, row.new().fit(X, row.target(y)), X_new)

    @once_a_base
    def test_the_defaults_take_few_steps_on_few_rows(self, row):
        X, y, _ = table(n=100, d=5)
        model = type(row.estimator)(random_state=0)
        # Five folds repeat the steps, but not the training of hyperparameters.
        most = 200 if row.name == "auto-classes" else 110
        assert model.fit(X, row.target(y)).n_iter_ <= most

    def test_one_new_row(self, row):
        model, X_new = shared(row)
        assert_sane(row, model, X_new[:1])

    def test_constant_columns(self, row):
        X, y, X_new = table()
        X = np.column_stack([X, np.full(len(X), 1e6)])
        model = row.new().fit(X, row.target(y))
        assert_sane(row, model, np.column_stack([X_new, np.full(M, 1e6)]))

    def test_duplicated_rows_with_noise(self, row):
        X, y, X_new = table()
        row_model = row.new()
        if "alpha" in row_model.get_params(deep=False):
            row_model.set_params(alpha=1e-4)
        y = row.target(np.tile(y, 2))
        assert_sane(row, row_model.fit(np.tile(X, (2, 1)), y), X_new)

    @needs("regressor", "normalize_y")
    @pytest.mark.parametrize("normalize_y", [False, True])
    def test_constant_target(self, row, normalize_y):
        self.check_constant_target(row, 5.0, normalize_y)

    @once_a_base
    @needs("regressor", "normalize_y")
    @pytest.mark.parametrize("normalize_y", [False, True])
    def test_zero_target(self, row, normalize_y):
        self.check_constant_target(row, 0.0, normalize_y)

    def check_constant_target(self, row, value, normalize_y):
        X, y, X_new = table()
        model = row.new(normalize_y=normalize_y).fit(X, np.full_like(y, value))
        assert_sane(row, model, X_new)
        if normalize_y:
            assert_allclose(model.predict(X_new), value, atol=1e-6)

    @needs("regressor")
    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_scales_of_columns(self, row, scale):
        X, y, X_new = table()
        assert_sane(row, row.new().fit(X * scale, y), X_new * scale)

    @pytest.mark.exact_input  # far targets would be perturbed by much of their deviation
    @needs("regressor")
    def test_the_targets_scale_and_offset_never_matter(self, row):
        X, y, X_new = table(n=40)

        def answers(a, b):
            model = row.new().fit(X[:30], a + b * y[:30])
            if hasattr(model, "partial_fit") and getattr(model, "basis", None) != "rows":
                model.partial_fit(X[30:], a + b * y[30:])
            mean, std = model.predict(X_new, return_std=True)
            return (mean - a) / b, std / b

        plain = answers(0.0, 1.0)
        # An offset of a million standard deviations, of a large target and of a small one.
        for a, b in [(-1e13, 1e7), (1e-3, 1e-9)]:
            for seen, expected in zip(answers(a, b), plain, strict=True):
                assert_allclose(seen, expected, rtol=0, atol=row.unit_atol * y.std())

    @once_a_base
    @needs("noise_variance", "multi_output", "normalize_y")
    def test_targets_with_noise_of_their_own_share_a_scale(self, row):
        X, y, X_new = table()
        Y = np.column_stack([y, 5 + 3 * y])
        model = row.new(normalize_y="auto").fit(X, Y, noise_variance=0.01)
        assert_sane(row, model, X_new)
        large = row.new(normalize_y="auto").fit(X, 1e4 + 1e3 * Y, noise_variance=1e4)
        small, big = model.predict(X_new), (large.predict(X_new) - 1e4) / 1e3
        assert_allclose(big, small, rtol=0, atol=max(1e-5, row.unit_atol) * y.std())

    @once_a_base
    @needs("noise_variance", "alpha")
    def test_alpha_is_in_units_of_y_unless_normalising_was_asked_for(self, row):
        X, y, X_new = table()
        y, noise = 5 + 10 * y, np.linspace(1.0, 30.0, N)
        known = row.new(kernel=None, normalize_y="auto").fit(X, y, noise_variance=noise)
        settings = [
            dict(alpha=noise, normalize_y="auto"),
            dict(alpha=noise / y.var(), normalize_y=True),
        ]
        for given in (row.new(kernel=None, **params).fit(X, y) for params in settings):
            atol = row.unit_atol * y.std()
            assert_allclose(given.predict(X_new), known.predict(X_new), rtol=0, atol=atol)
            ours = given.predict_std(X_new)
            theirs = known.predict_std(X_new, noise_variance=0.0)
            assert_allclose(ours, theirs, rtol=0, atol=atol)

    @once_a_class
    @needs("regressor", "kernel")
    def test_a_target_far_from_a_given_prior_is_warned_of(self, row):
        X, y, _ = table()
        kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
        model = row.new(kernel=kernel, normalize_y="auto")
        if "alpha" in model.get_params():
            model.set_params(alpha=0.1)
        if "min_noise" in model.get_params():  # a network, whose training does not matter here
            model.set_params(n_components=16, max_epochs=1)

        def warned(y, **params):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.set_params(**params).fit(X, y)
            return [w for w in caught if "normalize_y=True" in str(w.message)]

        assert not warned(y)
        centred = model.fit_report_.choices["normalize_y"].value
        assert len(warned(1e3 + y)) == (not centred)
        assert not warned(1e3 + y, normalize_y=True)

    # ------------------------------------------------------------ state

    @pytest.mark.fresh_starts
    def test_a_fit_changes_the_model_alone(self, row):
        """Parameters, the table and the state of global generators stay what they are."""
        X, y, X_new = table()
        model, y = row.new(), row.target(y)
        kept = X.copy(), y.copy(), X_new.copy()
        params = pickle.dumps(model.get_params())
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        assert model.fit(X, y) is model
        assert pickle.dumps(model.get_params()) == params
        row.everything(model, X_new)
        assert_all_equal(list(kept), [X, y, X_new])
        assert_array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), torch_state)

    @pytest.mark.fresh_starts
    def test_refits_are_identical(self, row):
        X, y, X_new = table()
        model = row.new()
        first = row.everything(model.fit(X, row.target(y)), X_new)
        model.fit(X[::2], row.target(y[::2]))
        again = row.everything(model.fit(X, row.target(y)), X_new)
        other = row.everything(shared(row)[0], X_new)
        assert_all_equal(first, again, row.repeat_rtol)
        assert_all_equal(first, other, row.repeat_rtol)

    @pytest.mark.fresh_starts
    def test_predict_changes_nothing(self, row):
        model, X_new = fitted(row)
        before = pickle.dumps(model)
        first = row.everything(model, X_new)
        assert pickle.dumps(model) == before
        assert_all_equal(first, row.everything(model, X_new), row.repeat_rtol)

    def test_pickles_before_and_after_predict(self, row):
        model, X_new = fitted(row)
        early = pickle.loads(pickle.dumps(model))
        said = row.everything(model, X_new)
        late = pickle.loads(whole(model))
        assert_all_equal(said, row.everything(early, X_new), row.repeat_rtol)
        assert_all_equal(said, row.everything(late, X_new), row.repeat_rtol)

    @once_a_class
    def test_files_before_and_after_predict(self, row, tmp_path):
        self.check_files(row, tmp_path)

    @pytest.mark.slow
    def test_files_of_every_row(self, row, tmp_path):
        self.check_files(row, tmp_path)

    def check_files(self, row, tmp_path):
        """A file gives what a pickle gives, to the bit: predictions, samples and the report."""
        model, X = shared(row)
        fresh = pickle.loads(pickle.dumps(model))
        size = save(fresh, tmp_path / "before")
        everything = row.everything(fresh, X)
        assert save(fresh, tmp_path / "after") == size
        assert save(fresh, tmp_path / "compact", compact=True) < size
        for name in ("before", "after", "compact"):
            again = load(tmp_path / name)
            assert_all_equal(row.everything(again, X), everything)
            assert str(again.fit_report_) == str(model.fit_report_)
            assert name == "compact" or vars(again).keys() == vars(model).keys()
        assert_all_equal(row.everything(model, X), everything, row.repeat_rtol or 1e-12)

    @once_a_class
    @needs("partial_fit")
    def test_a_file_continues(self, row, tmp_path):
        X, y, X_new = table(seed=2)
        model, _ = copied(row)
        save(model, tmp_path / "model")
        again = load(tmp_path / "model")
        for one in (model, again):
            one.partial_fit(X[:5], row.target(y)[:5])
        assert_all_equal(row.everything(model, X_new), row.everything(again, X_new), 1e-12)

    def test_fitted_state_needs_no_torch(self, row):
        model, X_new = shared(row)
        row.everything(model, X_new)
        assert b"torch" not in pickle.dumps(model)

    @on_all_rows
    def test_row_by_row_equals_batch(self, row):
        model, X_new = shared(row)
        scale = 1 if row.classifier else 3
        batch = (
            [model.predict_proba(X_new)]
            if row.classifier
            else list(model.predict(X_new, return_std=True))
        )
        for i in range(M):
            x = X_new[i : i + 1]
            one = [model.predict_proba(x)] if row.classifier else model.predict(x, return_std=True)
            for a, b in zip(batch, one, strict=True):
                assert_allclose(b[0], a[i], rtol=0, atol=row.batch_rtol * scale)

    def test_a_failed_refit_loses_nothing(self, row):
        model, X_new = copied(row)
        before, kept = model.predict(X_new), model.get_params(deep=False)
        X, y, _ = table(seed=1)
        hole = X.copy()
        hole[0, 0] = np.inf
        failures = [(hole, {})]
        failures += [(X, change) for change in UNFIT if all(row.has(name) for name in change)]
        for new_table, change in failures:
            with pytest.raises((ValueError, TypeError, MemoryError)):
                model.set_params(**change).fit(new_table, row.target(y))
            model.set_params(**{name: kept[name] for name in change})
            assert_array_equal(model.predict(X_new), before, err_msg=str(change))
            # The same again from the fitted attributes alone.
            again = pickle.loads(pickle.dumps(model))
            assert_array_equal(again.predict(X_new), before, err_msg=str(change))

    # ------------------------------------------------------------ uncertainty

    @needs("regressor")
    def test_std_grows_away_from_the_data(self, row):
        X = table()[0]
        model, _ = shared(row)
        near, far = model.predict_std(X).mean(), model.predict_std(X + 50).mean()
        assert far > near

    @needs("regressor")
    def test_latent_std_is_smaller(self, row):
        model, X_new = shared(row)
        assert_allclose(model.predict_std(X_new), model.predict(X_new, return_std=True)[1])
        assert (model.predict_std(X_new, include_noise=False) <= model.predict_std(X_new)).all()

    @on_all_rows
    @needs("regressor")
    def test_intervals_and_quantiles(self, row):
        model, X_new = shared(row)
        mean, std = model.predict(X_new, return_std=True)
        q = np.array([0.001, 0.025, 0.3, 0.5, 0.7, 0.975])
        quantiles = model.predict_quantiles(X_new, q)
        assert quantiles.dtype == np.float64 and (np.diff(quantiles, axis=1) >= 0).all()
        assert_allclose(model.predict_interval(X_new), quantiles[:, [1, 5]], rtol=1e-9)
        assert_allclose(quantiles[:, 3], mean, rtol=1e-6, atol=1e-6 * np.abs(mean).max())
        if row.gaussian:
            assert_allclose(
                quantiles, mean[:, None] + std[:, None] * ndtri(q), rtol=1e-6, atol=1e-9
            )
        latent = model.predict_std(X_new, include_noise=False)
        ends = model.predict_interval(X_new, 0.9, include_noise=False)
        assert_allclose(np.diff(ends)[:, 0], 2 * ndtri(0.95) * latent, rtol=1e-6, atol=1e-9)
        # Noise that is known to be nothing changes nothing.
        assert_array_equal(model.predict_std(X_new, noise_variance=0), model.predict_std(X_new))
        assert_array_equal(model.predict_quantiles(X_new, q, noise_variance=0.0), quantiles)

        wrong = {
            "coverage must lie strictly between 0 and 1": [
                lambda: model.predict_interval(X_new, 95),
                lambda: model.predict_interval(X_new, None),
            ],
            "coverage must be one number": [lambda: model.predict_interval(X_new, [0.5, 0.9])],
            "q must lie strictly between 0 and 1": [
                lambda: model.predict_quantiles(X_new, [0.1, 1.0]),
                lambda: model.predict_quantiles(X_new, "half"),
                lambda: model.predict_quantiles(X_new, []),
                lambda: model.predict_quantiles(X_new, [[0.5]]),
            ],
            "noise_variance must be non-neg": [lambda: model.predict_std(X_new, noise_variance=-1)],
            r"same number of entries as y. \(2 != 7\)": [
                lambda: model.predict_std(X_new, noise_variance=[1, 2])
            ],
            "must hold real numbers": [lambda: model.predict_std(X_new, noise_variance="a")],
            "noise_variance must be finite": [lambda: model.predict(X_new, noise_variance=np.nan)],
            r"shape \(7, 3\) for 7": [
                lambda: model.sample_y(X_new, noise_variance=np.ones((M, 3)))
            ],
            "include_noise=False leaves out": [
                lambda: model.predict_interval(X_new, include_noise=False, noise_variance=1.0),
                lambda: model.predict_std(X_new, False, 1.0),
            ],
        }
        for message, calls in wrong.items():
            for call in calls:
                with pytest.raises(ValueError, match=message):
                    call()

    @needs("regressor", "samples")
    def test_samples_follow_their_seed(self, row):
        model, X_new = shared(row)
        first = model.sample_y(X_new, 4, random_state=3)
        assert_array_equal(first, model.sample_y(X_new, 4, random_state=3))
        assert not np.allclose(first, model.sample_y(X_new, 4, random_state=4))
        drawn = np.random.RandomState(3)
        assert not np.allclose(
            model.sample_y(X_new, 4, random_state=drawn),
            model.sample_y(X_new, 4, random_state=drawn),
        )
        assert_array_equal(model.sample_y(X_new), model.sample_y(X_new, 1, 0))

    # ------------------------------------------------------------ classes

    @needs("classifier")
    def test_labels_are_only_names(self, row):
        X, y, X_new = table()
        codes = row.target(y)
        plain = row.new().fit(X, codes)
        for names in (np.array(["no", "yes"]), np.array(["a", "b"], dtype=object), [False, True]):
            names = np.asarray(names)
            model = row.new().fit(X, names[codes])
            assert_array_equal(model.classes_, names)
            assert_array_equal(model.predict(X_new), names[plain.predict(X_new)])
            assert_array_equal(model.predict_proba(X_new), plain.predict_proba(X_new))

    @needs("multi_class")
    def test_more_than_two_classes(self, row):
        X, y, X_new = table()
        names = np.array(["low", "middle", "top"])
        model = row.new().fit(X, names[np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))])
        assert_array_equal(model.classes_, names)
        assert_sane(row, model, X_new)

    @once_a_class
    @needs("classifier")
    def test_labels_that_are_none(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="class"):
            row.new().fit(X, np.zeros(N, dtype=int))
        with pytest.raises(ValueError, match="Unknown label type"):
            row.new().fit(X, y)

    # ------------------------------------------------------------ in company

    @once_a_base
    def test_pipeline_and_cross_validation(self, row):
        X, y, _ = table()
        pipeline = make_pipeline(StandardScaler(), row.new())
        scores = cross_val_score(pipeline, X, row.target(y), cv=2, error_score="raise")
        assert np.isfinite(scores).all()

    @once_a_base
    @needs("search")
    def test_grid_search(self, row):
        X, y, X_new = table()
        search = GridSearchCV(row.new(), dict(row.search), cv=2, error_score="raise")
        search.fit(X, row.target(y))
        assert set(search.best_params_) == set(row.search)
        assert_sane(row, search.best_estimator_, X_new)

    @once_a_base
    @needs("regressor")
    def test_transformed_target(self, row):
        X, y, X_new = table()
        model = TransformedTargetRegressor(row.new(), transformer=StandardScaler())
        assert model.fit(X, 100 + 5 * y).predict(X_new).shape == (M,)
        assert 80 < model.predict(X_new).mean() < 120

    @once_a_base
    @needs("regressor")
    def test_multi_output_wrapper(self, row):
        X, y, X_new = table()
        model = MultiOutputRegressor(row.new()).fit(X, np.column_stack([y, -y]))
        assert model.predict(X_new).shape == (M, 2)

    @pytest.mark.slow
    @once_a_class
    @needs("regressor")
    def test_imputer_with_posterior_samples(self, row):
        X, y, _ = table()
        holes = np.column_stack([X, y])
        holes[::5, 2] = np.nan
        imputer = IterativeImputer(row.new(), sample_posterior=True, max_iter=1, random_state=0)
        filled = imputer.fit_transform(holes)
        assert np.isfinite(filled).all()
        assert_array_equal(filled[1], holes[1])

    # ------------------------------------------------------------ noise per row, metadata routing

    @needs("noise_variance")
    def test_noise_variance_changes_the_predictions(self, row):
        X, y, X_new = table()
        noise = np.where(np.arange(N) < N // 2, 1e-3, 2.0)
        informed = row.new().fit(X, y, noise_variance=noise)
        assert not np.allclose(shared(row)[0].predict(X_new), informed.predict(X_new))

    @once_a_base
    @needs("noise_variance")
    def test_noise_variance_without_routing(self, row):
        X, y, _ = table()
        noise = np.where(np.arange(N) < N // 2, 1e-3, 2.0)
        with sklearn.config_context(enable_metadata_routing=False):
            params = {"noise_variance": noise}
            cross_validate(row.new(), X, y, cv=2, params=params, error_score="raise")
            pipeline = make_pipeline(StandardScaler(), row.new())
            step = f"{pipeline.steps[-1][0]}__noise_variance"
            pipeline.fit(X, y, **{step: noise})

    @pytest.mark.slow
    @once_a_class
    @needs("noise_variance")
    def test_noise_variance_with_routing(self, row):
        X, y, X_new = table()
        noise = np.where(np.arange(N) < N // 2, 1e-3, 2.0)
        informed = row.new().fit(X, y, noise_variance=noise).predict(X_new)
        with sklearn.config_context(enable_metadata_routing=True):
            model = row.new().set_fit_request(noise_variance=True)
            model = model.set_predict_request(noise_variance=True, return_std=True)
            params = {"noise_variance": noise}
            scorer = coverage_scorer(0.5).set_score_request(noise_variance=True)
            with warnings.catch_warnings():
                # The scorer passes noise on, so that nothing is left out.
                warnings.filterwarnings("error", "(?s).*was fitted with noise_variance")
                scores = cross_validate(
                    model, X, y, cv=2, params=params, scoring=scorer, error_score="raise"
                )
            assert (scores["test_score"] <= 1).all()
            pipeline = make_pipeline(model).fit(X, y, noise_variance=noise)
            assert_array_equal(pipeline.predict(X_new), informed)
            known = pipeline.predict(X_new, return_std=True, noise_variance=noise[:M])[1]
            unknown = pipeline.predict(X_new, return_std=True, noise_variance=0)[1]
            assert_allclose(known, np.sqrt(unknown**2 + noise[:M]), rtol=1e-6)
            if row.search:
                # Other values go the same way; `test_grid_search` compares some.
                first = {name: values[:1] for name, values in row.search.items()}
                search = GridSearchCV(model, first, cv=2, error_score="raise")
                search.fit(X, y, noise_variance=noise)

    @once_a_class
    @needs("noise_variance")
    def test_noise_that_predictions_leave_out_is_told_once(self, row):
        X, y, X_new = table()
        model = row.new().fit(X, y, noise_variance=np.full(N, 0.3))

        def told(call):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            return [w for w in caught if "was fitted with noise_variance" in str(w.message)]

        assert not told(lambda: model.predict(X_new))
        assert not told(lambda: model.predict(X_new, return_std=True, noise_variance=0.3))
        assert not told(lambda: model.predict_std(X_new, include_noise=False))
        (warning,) = told(lambda: [model.predict_interval(X_new), model.predict_std(X_new)])
        assert issubclass(warning.category, UserWarning) and warning.filename == __file__
        assert not told(lambda: model.predict(X_new, return_std=True))
        again = pickle.loads(pickle.dumps(model))
        assert len(told(lambda: again.predict_std(X_new))) == 1
        assert not told(lambda: row.new().fit(X, y).predict_std(X_new))

    @once_a_class
    @needs("noise_variance", "multi_output")
    def test_noise_per_target_is_shared(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="differs between the targets"):
            noise = np.column_stack([np.full(N, 0.1), np.full(N, 0.2)])
            row.new().fit(X, np.column_stack([y, -y]), noise_variance=noise)

    @pytest.mark.slow
    @once_a_class
    def test_routing_on_without_metadata(self, row):
        X, y, _ = table()
        with sklearn.config_context(enable_metadata_routing=True):
            cross_val_score(row.new(), X, row.target(y), cv=2, error_score="raise")

    # ------------------------------------------------------------ wrong input

    @once_a_class
    def test_nan_and_inf(self, row):
        for bad in (np.nan, np.inf, -np.inf):
            X, y, X_new = table()
            y = row.target(y).astype(float)
            holes, hole, new = X.copy(), y.copy(), X_new.copy()
            holes[1, 1] = hole[3] = new[1, 1] = bad
            with pytest.raises(ValueError, match="NaN|infinity"):
                row.new().fit(X, hole)
            if row.missing and np.isnan(bad):
                assert np.isfinite(row.new().fit(holes, row.target(table()[1])).predict(new)).all()
                continue
            with pytest.raises(ValueError, match="NaN|infinity"):
                row.new().fit(holes, y)
            with pytest.raises(ValueError, match="NaN|infinity"):
                shared(row)[0].predict(new)

    @once_a_class
    @pytest.mark.parametrize(
        "change, error, message",
        [
            (lambda X: scipy.sparse.csr_matrix(X), TypeError, "[Ss]parse"),
            (lambda X: scipy.sparse.csr_array(X), TypeError, "[Ss]parse"),
            (lambda X: X + 1j, ValueError, "[Cc]omplex"),
            (lambda X: X.astype(str).astype(object) + "a", ValueError, "could not convert|dtype"),
            (lambda X: X[:0], ValueError, "0 sample|[Ee]mpty|minimum of 1"),
            (lambda X: X[:, :0], ValueError, "0 feature"),
            (lambda X: X[:, 0], ValueError, "2D array"),
            (lambda X: X[:, :, None], ValueError, "dim 3|2D|dimensions"),
            (lambda X: None, (ValueError, TypeError), "."),
        ],
        ids=[
            "sparse matrix",
            "sparse array",
            "complex",
            "strings",
            "no rows",
            "no columns",
            "1-D",
            "3-D",
            "None",
        ],
    )
    def test_wrong_tables(self, row, change, error, message):
        X, y, X_new = table()
        bad = change(X)
        y = row.target(y)
        if row.missing and getattr(bad, "dtype", np.dtype(float)).kind == "O":
            assert len(row.new().fit(bad, y).predict(change(X_new))) == len(X_new)
            return
        with pytest.raises(error, match=message):
            row.new().fit(bad, y[: 0 if bad is not None and bad.shape[0] == 0 else None])
        with pytest.raises(error, match=message):
            shared(row)[0].predict(change(X_new))

    @once_a_class
    def test_wrong_targets(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            row.new().fit(X, row.target(y)[:-1])
        with pytest.raises((TypeError, ValueError), match="y"):
            row.new().fit(X, None)

    @once_a_class
    @needs("regressor")
    def test_targets_that_are_no_real_numbers(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="[Cc]omplex"):
            row.new().fit(X, y + 1j)
        with pytest.raises(ValueError, match="could not convert|dtype"):
            row.new().fit(X, np.array(["low", "high"] * (N // 2), dtype=object))

    @once_a_class
    def test_wrong_number_of_columns(self, row):
        model, X_new = shared(row)
        with pytest.raises(ValueError, match="X has 3 features, but .* is expecting 2 features"):
            model.predict(np.column_stack([X_new, X_new[:, 0]]))

    @once_a_class
    def test_dates_and_strings_in_tables(self, row):
        pd = pytest.importorskip("pandas")
        if row.new().__sklearn_tags__().input_tags.string:
            return
        X, y, _ = table()
        frame = pd.DataFrame(X, columns=["a", "b"]).assign(
            sold=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(len(X)), unit="D"),
            city="Rome",
        )
        for columns, named in [
            (["a", "sold"], "dates in column 'sold'"),
            (["sold"], "dates in column 'sold'"),
            (["a", "sold", "city"], "dates in column 'sold' and strings in column 'city'"),
        ]:
            model = row.new()
            with pytest.raises(ValueError, match=f"for {type(model).__name__}, got {named}: "):
                model.fit(frame[columns], row.target(y))

    def test_not_fitted(self, row):
        X_new = table()[2]
        model = row.new()
        if row.prior:
            before = dict(vars(model))
            for answer in row.everything(model, X_new):
                assert np.isfinite(answer).all() and len(answer) == M
            assert vars(model) == before
            return
        with pytest.raises(NotFittedError, match="not fitted"):
            model.predict(X_new)
        if row.classifier:
            with pytest.raises(NotFittedError, match="not fitted"):
                model.predict_proba(X_new)
            return
        with pytest.raises(NotFittedError, match="not fitted"):
            model.predict_std(X_new)
        if row.samples:
            with pytest.raises(NotFittedError, match="not fitted"):
                model.sample_y(X_new)

    @once_a_class
    @needs("covariances")
    def test_std_and_cov_together(self, row):
        model, X_new = shared(row)
        with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
            model.predict(X_new, return_std=True, return_cov=True)

    @once_a_class
    @needs("alpha")
    def test_wrong_alpha(self, row):
        X, y, _ = table()
        y = row.target(y)
        with pytest.raises(ValueError, match=rf"alpha must be a scalar or an .*\(7 != {N}\)"):
            row.new(alpha=np.ones(7)).fit(X, y)
        with pytest.raises(ValueError, match="alpha.* got -0.1|non-negative.*-0.1|Got -0.1"):
            row.new(alpha=-0.1).fit(X, y)
        with pytest.raises(ValueError, match="alpha must be non-negative, got -1 in entry 2"):
            row.new(alpha=np.where(np.arange(N) == 2, -1.0, 1.0)).fit(X, y)
        with pytest.raises(ValueError, match="alpha must be finite"):
            row.new(alpha=np.full(N, np.nan)).fit(X, y)

    @once_a_class
    @needs("regressor")
    def test_wrong_noise_variance(self, row):
        X, y, _ = table()
        if not row.noise_variance:
            name = type(row.new()).__name__
            with pytest.raises(ValueError, match=rf"{name} .*noise_variance: .*use "):
                row.new().fit(X, y, noise_variance=0.1)
            return
        with pytest.raises(ValueError, match=rf"noise_variance must be a .*\(3 != {N}\)"):
            row.new().fit(X, y, noise_variance=np.ones(3))
        with pytest.raises(ValueError, match="noise_variance must be non-negative"):
            row.new().fit(X, y, noise_variance=-np.ones(N))

    @once_a_class
    def test_wrong_device(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="device.*'auto'.*'cpu'"):
            row.new(device="toaster").fit(X, row.target(y))
        missing = f"cuda:{torch.cuda.device_count()}"
        with pytest.raises(ValueError, match=f"device='{missing}' is not available here.*'cpu'"):
            row.new(device=missing).fit(X, row.target(y))
        if not torch.cuda.is_available():
            with pytest.raises(ValueError, match="device='cuda' is not available here.*'cpu'"):
                row.new(device="cuda").fit(X, row.target(y))

    @once_a_class
    def test_wrong_dtype(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="dtype.*float32"):
            row.new(dtype="float16").fit(X, row.target(y))

    def test_nonsense_is_refused(self, row):
        """Also where a short cut, for few rows or optimizer=None, never reads a parameter."""
        X, y, _ = table(n=30)
        settings = row.estimator.get_params(deep=False)
        cheap = {name: 1 for name in ("max_iter", "max_epochs") if name in settings}
        fixed = {"optimizer": None} if "optimizer" in settings else {}
        for name, nonsense, more in product(settings, ("nonsense", ["nonsense"]), ({}, fixed)):
            if name == "checkpoint" and isinstance(nonsense, str):
                continue  # Any text names a folder.
            model = row.new(**cheap | more | {name: nonsense})
            with pytest.raises((ValueError, TypeError), match=rf"{name}.*nonsense"):
                model.fit(X, row.target(y))

    @once_a_class
    @needs("solver")
    def test_unknown_solver_lists_the_known(self, row):
        X, y, _ = table()
        with pytest.raises(ValueError, match="solver") as caught:
            row.new(solver="magic").fit(X, row.target(y))
        assert all(f"'{known}'" in str(caught.value) for known in ("cholesky", "cg"))

    @needs("columns")
    def test_kernels_on_columns(self, row):
        X, y = frame()
        numbers = ConstantKernel(1.0) * Columns(RBF(), "a")
        categories = Columns(Categorical(), ["category"]), Columns(LowRankCategorical(3), 2)
        for kernel, kinds in [
            (numbers, ("categories", "numbers")),
            (numbers * categories[0] + categories[1], ("categories",)),
        ]:
            model = row.with_kernel(kernel + WhiteKernel(0.1))
            if row.columns not in kinds:
                refused = "outputs of a network|a grid cannot interpolate|restricted to some col"
                with pytest.raises(ValueError, match=refused + '|use basis="rows"'):
                    model.fit(X, row.target(y))
                continue
            model.fit(X, row.target(y))
            changed = X.assign(other=X["other"].to_numpy()[::-1])
            answers = row.everything(model, X), row.everything(model, changed)
            for before, after in zip(*answers, strict=True):
                # A grid's weights along that column add up to 1, up to rounding.
                assert_allclose(after, before, rtol=1e-5, atol=1e-5)
            # A category that no row has.
            assert_sane(row, model, X.assign(category=7))
            if kinds == ("categories",) and hasattr(model, "partial_fit"):
                with pytest.raises(ValueError, match='whole numbers|basis="rows"'):
                    model.partial_fit(X.assign(category=0.5), row.target(y))
            trained = getattr(model, "estimator_", model).kernel_
            assert all(isinstance(c, int) for c in _columns_of(trained))
            assert clone(trained) == trained
            assert "a" in _columns_of(kernel)

    @needs("priors")
    def test_priors_of_hyperparameters(self, row):
        X, y, _ = table()
        kernel = ConstantKernel(1.0) * RBF() + WhiteKernel(0.1)
        far = {"k1__k2__length_scale": LogNormal(1.5, 0.02)}
        model = row.new(kernel=kernel, priors=far).fit(X, row.target(y))
        assert model.history_["objective_name"][-1].partition(" per row")[0].endswith("+ log prior")
        # Towards the prior's median: some rows of the table allow few steps.
        free = row.new(kernel=kernel).fit(X, row.target(y))
        assert model.fit_report_.log_prior > ThetaPrior(free.kernel_, far)(free.kernel_.theta)[0]
        assert not np.isnan(model.fit_report_.log_posterior)
        with pytest.raises(
            ValueError, match="the kernel does not have.*'k1__k1__constant_value', 'k1"
        ):
            row.new(kernel=kernel, priors={"length_scale": LogNormal()}).fit(X, row.target(y))

    @once_a_class
    @needs("kernel")
    def test_unknown_kernel_lists_what_works(self, row):
        X, y, _ = table()
        if row.any_kernel:
            with pytest.raises(TypeError, match="one kernel for each class of a classifier"):
                row.new(kernel=CompoundKernel([RBF()])).fit(X, row.target(y))
            return
        with pytest.raises(TypeError, match="PairwiseKernel.*IterativeGPRegressor.*RBF"):
            row.new(kernel=PairwiseKernel()).fit(X, row.target(y))
        with pytest.raises(TypeError, match=r"nu.*1\.5"):
            row.new(kernel=Matern(nu=0.7)).fit(X, row.target(y))

    @once_a_class
    @needs("alpha", "kernel")
    def test_duplicates_without_noise(self, row):
        X, y, _ = table()
        X[1] = X[0]
        with pytest.raises(
            ValueError, match="1 of the (24|23 different) rows .* Set alpha .* WhiteKernel"
        ):
            row.new(kernel=RBF(), alpha=0.0).fit(X, row.target(y))

    def test_time_budget_leaves_a_model(self, row):
        X, y, X_new = table()
        model = row.new(max_seconds=1e-9)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, row.target(y))
        ours = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
        assert len(ours) == 1
        assert "max_seconds" in str(ours[0].message)
        assert_sane(row, model, X_new)
