"""Files of models: nothing runs, nothing is lost, and what cannot be saved is refused first."""

import copyreg
import json
import os
import pickle
import resource
import sys
import warnings

import named
import numpy as np
import pytest
import torch
from files_forge import Forged
from numpy.testing import assert_array_equal
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SVGPRegressor,
    files,
    load,
    save,
)
from skscalablegp.files import ModelFileError, register, saved_size
from skscalablegp.storage import checked_source, checked_target

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(60)


@pytest.fixture
def registry(stand_in):
    """What a test registers, which is forgotten afterwards."""
    registered = {}
    stand_in("_REGISTERED", registered)
    return registered


@pytest.fixture(scope="module")
def model():
    return SVGPRegressor(n_inducing=8, max_iter=5, random_state=0).fit(X, Y)


def assert_same(model, again, X=X):
    assert_array_equal(again.predict(X), model.predict(X))
    assert_array_equal(again.predict_std(X), model.predict_std(X))
    assert_array_equal(again.sample_y(X[:5], random_state=3), model.sample_y(X[:5], random_state=3))
    assert str(again.fit_report_) == str(model.fit_report_)
    assert repr(again) == repr(model)


def forbidden(*args, **kwargs):
    raise AssertionError("pickle was used")


def test_no_pickle(model, tmp_path, monkeypatch):
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(copyreg, "_reconstructor", forbidden)
    save(model, tmp_path / "model")
    assert b"pickle" not in (tmp_path / "model").read_bytes()
    assert_same(model, load(tmp_path / "model"))


def test_the_library_of_the_format_reads_the_tensors(model, tmp_path):
    from safetensors.numpy import load_file

    size = save(model, tmp_path / "model.safetensors")
    assert size == saved_size(model) == (tmp_path / "model.safetensors").stat().st_size
    tensors = load_file(tmp_path / "model.safetensors")
    assert_array_equal(tensors["inducing_points_"], model.inducing_points_)
    assert_array_equal(tensors["_scaling.x_mean"], model._scaling.x_mean)


def test_tensors_of_every_dtype_layout_and_name(registry, tmp_path):
    """The library reads what was written, under the umask, and in the size that was foretold."""
    from safetensors.numpy import load_file

    rows = np.arange(1000, 1024.0).reshape(4, 6)
    values = {dtype: rows.astype(dtype) for dtype in "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ?".split()}
    values |= {"columns": rows[:, ::2], "swapped": rows.astype(">f8"), "one": np.array(3.5)}
    values |= {"größe\n\x7f": rows.T, '"\\': rows[:0], "\ud83d": rows[0], "😀": rows[1]}
    holder = register(Holder)()
    holder.values = values
    path = tmp_path / "model"
    assert save(holder, path) == saved_size(holder) == path.stat().st_size
    (beside := tmp_path / "beside").touch()
    assert path.stat().st_mode == beside.stat().st_mode
    again = load(path).values
    assert [*again] == [*values] and len(load_file(path)) == len(values)
    for name, value in values.items():
        assert again[name].shape == value.shape and again[name].dtype.kind == value.dtype.kind
        assert_array_equal(again[name], value)
    assert_array_equal(load_file(path)["values.columns"], rows[:, ::2])


def test_what_is_shared_stays_shared(tmp_path):
    from skscalablegp import StackedGPRegressor

    model = StackedGPRegressor([("a", RFFRegressor(n_components=20, max_iter=3))], random_state=0)
    model.fit(X, Y)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again._members[0].inner is again.estimators_[0]
    assert_same(model, again)


def test_memory_layout_is_kept(tmp_path):
    model = RFFRegressor(n_components=20, max_iter=2, random_state=0).fit(X, Y)
    model.coef_precision_cholesky_ = np.asfortranarray(model.coef_precision_cholesky_)
    save(model, tmp_path / "model")
    assert load(tmp_path / "model").coef_precision_cholesky_.flags.f_contiguous


class Holder:
    """Something with attributes."""


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.float64("nan"),
        float("-inf"),
        -0.0,
        2**80,
        (1, (2.5, None)),
        {1: "a", (2, "b"): [True]},
        {"same": [1]},
        frozenset({3, 1}),
        slice(1, None),
        np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2],
        np.full((40, 3), -0.0),
        np.array(["a", "ü" * 30]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        np.datetime64("2020-02-29T12:00"),
        np.array([], dtype=np.float32).reshape(0, 5),
        np.array(3.5),
        ["category"] * 100,
        [0.1 * k for k in range(100)],
        tuple(range(100)),
        np.random.RandomState(3),
        np.random.default_rng(5),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values(value, registry, tmp_path):
    """Whatever an attribute holds comes back with its type."""
    holder = register(Holder)()
    holder.value = value
    save(holder, tmp_path / "model")
    again = load(tmp_path / "model").value
    assert type(again) is type(value)
    if isinstance(value, np.ndarray | np.generic):
        assert again.dtype == value.dtype and again.shape == value.shape
        assert again.tobytes() == value.tobytes()
    elif isinstance(value, np.random.RandomState):
        assert_array_equal(again.normal(size=5), value.normal(size=5))
    elif isinstance(value, np.random.Generator):
        assert_array_equal(again.normal(size=5), value.normal(size=5))
    else:
        assert again == value and repr(again) == repr(value)


# ------------------------------------------------------------------ code of one's own


class Warped(RBF):
    """A user's kernel, which only has NumPy code."""


def halves(n_columns):
    return torch.nn.Sequential(torch.nn.Linear(n_columns, 4), torch.nn.Tanh())


def test_single_precision_comes_back_without_a_warning(tmp_path):
    model = IterativeGPRegressor(posterior="pathwise", solver="cg", dtype="float32", random_state=0)
    save(model.fit(X, Y), tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(model, load(tmp_path / "model"))


def test_a_kernel_of_ones_own(registry, tmp_path):
    model = IterativeGPRegressor(Warped() + WhiteKernel(0.1), optimizer=None).fit(X, Y)
    with pytest.raises(TypeError, match=r"kernel\.k1 is .*Warped.*register\(Warped\)"):
        save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    assert register(Warped) is Warped
    save(model, tmp_path / "model")
    assert_same(model, load(tmp_path / "model"))
    registry.clear()
    with pytest.raises(ModelFileError, match=r"Warped.*register"):
        load(tmp_path / "model")


def test_a_function_of_ones_own(registry, tmp_path):
    model = SCGDDKLRegressor(feature_extractor=halves, max_epochs=2, random_state=0).fit(X, Y)
    with pytest.raises(TypeError, match=r"feature_extractor is the function halves.*register"):
        save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    register(halves, "halves")
    save(model, tmp_path / "model")
    assert_same(model, load(tmp_path / "model"))


def test_a_module_of_layers(tmp_path):
    model = SCGDDKLRegressor(feature_extractor=halves(2), max_epochs=2, random_state=0).fit(X, Y)
    save(model, tmp_path / "model")
    assert_same(model, load(tmp_path / "model"))


def test_wrong_registrations(registry):
    with pytest.raises(TypeError, match="a class or a function, got 3"):
        register(3)
    with pytest.raises(ValueError, match="stands for .* already"):
        register(Warped, "SVGPRegressor")
    with pytest.raises(ValueError, match="ASCII"):
        register(Warped, "")


def test_a_parameter_that_no_fit_would_take(tmp_path):
    with pytest.raises(ValueError, match="n_inducing"):
        save(SVGPRegressor(n_inducing=-3), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_no_objects_of_other_libraries(tmp_path):
    model = SVGPRegressor(callbacks=[json.JSONDecoder()])
    with pytest.raises(TypeError, match=r"callbacks\.0 is a json.decoder.JSONDecoder, which files"):
        save(model, tmp_path / "model")


# ------------------------------------------------------------------ writing


def test_a_write_that_fails_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "model"
    save(model, path)
    before = path.read_bytes()

    def full(*args):
        raise OSError("no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="no space"):
                save(RFFRegressor(), path)
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(model, tmp_path):
    path = tmp_path / "model"
    save(model, path)
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=f"{path} cannot be written"):
            save(model, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_paths_that_are_none_say_what_to_do(model, tmp_path):
    for checked in (checked_source, checked_target):
        with pytest.raises(TypeError, match="path must be .* got 3: give the name"):
            checked(3)
    for save_or_load in (lambda path: save(model, path), load):
        with pytest.raises(IsADirectoryError, match="is a folder: give the name of a file in it"):
            save_or_load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere.*create the folder first"):
        save(model, tmp_path / "nowhere" / "model")
    with pytest.raises(FileNotFoundError, match="'.*model' does not exist: give the path"):
        load(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_fitted(tmp_path):
    save(NNGPRegressor(n_neighbors=30), tmp_path / "model")
    assert load(tmp_path / "model").fit(X, Y).n_neighbors_ == 30


# ------------------------------------------------------------------ versions


def test_a_later_schema_is_named(model, tmp_path):
    save(model, tmp_path / "model")
    forged = Forged(tmp_path / "model")
    forged.structure["schema"] = 99
    forged.structure["written_by"] = {"skscalablegp": "9.1"}
    with pytest.raises(ModelFileError, match=r"schema 99.*update it.*9\.1"):
        load(forged.write(tmp_path / "later"))


def test_a_file_of_an_earlier_version_has_fewer_parameters(model, tmp_path):
    """Parameters and fields that came later take their defaults."""
    save(model, tmp_path / "model")
    forged = Forged(tmp_path / "model")
    del forged.structure["model"]["object"]["state"]["batch_size"]
    again = load(forged.write(tmp_path / "earlier"))
    assert again.batch_size == SVGPRegressor().batch_size
    assert_same(model, again)


def test_a_class_of_a_later_version_is_named(model, tmp_path):
    save(model, tmp_path / "model")
    forged = Forged(tmp_path / "model")
    forged.structure["model"]["object"]["class"] = "NewRegressor"
    forged.structure["written_by"]["skscalablegp"] = "9.1"
    with pytest.raises(ModelFileError, match=r"'NewRegressor'.*written by skscalablegp 9\.1"):
        load(forged.write(tmp_path / "later"))


def test_the_table_has_each_class_once():
    names = list(named.module("_REGISTERED")._names().values())
    assert len(set(names)) == len(names) > 100
    assert {"SVGPRegressor", "kernels.Gaussian", "likelihoods.Gaussian"} <= set(names)
    assert files.__all__ == ["ModelFileError", "register", "saved_size"]


# ------------------------------------------------------------------ nothing is imported


@pytest.mark.parametrize("name", ["antigravity", "os.system", "builtins.eval", "subprocess.Popen"])
@pytest.mark.parametrize("kind", ["object", "named", "made", "fields", "entries"])
def test_nothing_that_a_file_names_is_imported(name, kind, model, tmp_path):
    save(model, tmp_path / "model")
    forged = Forged(tmp_path / "model")
    content = {
        "object": {"class": name, "state": {}},
        "named": name,
        "made": {"class": name, "arguments": ["true"]},
        "fields": {"class": name, "values": []},
        "entries": {"class": name, "values": {}},
    }
    forged.structure["model"]["object"]["state"]["random_state"] = {kind: content[kind]}
    with pytest.raises(ModelFileError, match="unknown to this version"):
        load(forged.write(tmp_path / "hostile"))
    assert "antigravity" not in sys.modules


def test_classes_are_not_called(model, tmp_path):
    """Only those that are made by a call in this package are, and only in the right role."""
    save(model, tmp_path / "model")
    for kind, name in (
        ("made", "SVGPRegressor"),
        ("fields", "kernels.Columns"),
        ("object", "FitReport"),
    ):
        forged = Forged(tmp_path / "model")
        content = {"class": name, "arguments": [], "values": [], "state": {}}
        forged.structure["model"]["object"]["state"]["random_state"] = {kind: content}
        with pytest.raises(ModelFileError):
            load(forged.write(tmp_path / "hostile"))


@pytest.mark.parametrize(
    "estimator", [KISSGPRegressor(grid_size=8, structure="additive", max_iter=2)]
)
def test_partial_fit_continues(estimator, tmp_path):
    model = estimator.fit(X, Y)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    for one in (model, again):
        one.partial_fit(X[:5] + 0.1, Y[:5])
    again.fit_report_ = model.fit_report_  # of another fit, which took other seconds
    assert_same(model, again)
