"""Files that were damaged, or written by strangers: one error, or a model that still predicts."""

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from files_forge import Forged
from fuzz.files import Fuzzer, checkpoint, fits, memory, outcome, run
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    MeanFunctionRegressor,
    NNGPRegressor,
    PoERegressor,
    SGPRRegressor,
    SVGPRegressor,
    load,
    save,
)
from skscalablegp.files import ModelFileError

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (40, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("files") / "model"
    save(SVGPRegressor(n_inducing=6, max_iter=3, random_state=0).fit(X, Y), made)
    return made


def failures(found):
    return [(what, said) for what, end, said, *_ in found if end == "failed"]


def test_some_cases(tmp_path):
    """`make fuzz-files` draws 10,000."""
    found = list(run(100, 1, tmp_path, names=("svgp", "grid", "nngp", "pipeline")))
    assert not failures(found)
    ends = [end for _, end, *_ in found]
    # Most changes are noticed. The others left no trace, or are what a fit could have given.
    assert ends.count("refused") > 0.75 * len(ends) and "same" in ends


@pytest.mark.night
def test_more_cases(tmp_path):
    assert not failures(run(2000, 2, tmp_path))
    (few := tmp_path / "few").mkdir()
    assert not failures(run(300, 1, few, names=("svgp", "grid", "nngp", "pipeline")))


@pytest.mark.parametrize("part", ["_theta", "_points"])
def test_a_last_state_with_fewer_numbers_is_refused(part, tmp_path):
    """Where the fit ended, no further step would use it."""
    model = fits()["steps"]
    forged = Forged(file := checkpoint(model, tmp_path))
    (name,) = [name for name in forged.header if name.endswith(f"/1.stepper.{part}")]
    array = forged.array(name)
    forged.put(name, array[: len(array) // 2].copy())
    forged.write(file)
    assert outcome(file, None, model)[0] == "refused"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_evaluation_without_a_value_is_refused(value, tmp_path):
    """The search for the next hyperparameters would go on from it."""
    model = fits()["evaluations"]
    forged = Forged(file := checkpoint(model, tmp_path))
    name = next(name for name in forged.header if name.endswith(".numbers"))
    array = forged.array(name)
    array[-1, 0] = value
    forged.put(name, array)
    forged.write(file)
    found, said = outcome(file, None, model)
    assert found == "refused" and "evaluations is not finite" in said


def test_a_file_cut_anywhere(path, tmp_path):
    raw = path.read_bytes()
    places = np.linspace(0, len(raw) - 1, 100, dtype=int)
    for at in places:
        (tmp_path / "cut").write_bytes(raw[:at])
        with pytest.raises(ModelFileError, match="cannot be loaded"):
            load(tmp_path / "cut")


@pytest.mark.slow
def test_a_file_cut_at_a_thousand_places(path, tmp_path):
    raw = path.read_bytes()
    for at in np.linspace(0, len(raw) - 1, 1000, dtype=int):
        (tmp_path / "cut").write_bytes(raw[:at])
        with pytest.raises(ModelFileError):
            load(tmp_path / "cut")


def test_every_tensor_has_a_checksum(path, tmp_path):
    raw, forged = path.read_bytes(), Forged(path)
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, entry in forged.header.items():
        damaged = bytearray(raw)
        damaged[start + entry["data_offsets"][1] - 1] ^= 1
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ModelFileError, match=f"tensor '{name}' does not match its checksum"):
            load(tmp_path / "damaged")
        forged = Forged(path)
        del forged.data[name], forged.header[name]
        with pytest.raises(ModelFileError):
            load(forged.write(tmp_path / "without"))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: f.put("inducing_points_", f.array("inducing_points_")[:3]), "does not fit"),
        (
            lambda f: f.put("inducing_points_", np.full((6, 2), np.nan)),
            "inducing_points_ contains NaN",
        ),
        (lambda f: f.put("inducing_points_", np.ones((6, 2), "<i8")), "of the right type"),
        (lambda f: f.put("inducing_points_", np.full((6, 2), -1e200)), "that no fit produces"),
        (lambda f: f.put("latent_constant_", np.zeros(0)), "which does not fit the rest"),
        (lambda f: f.put("_scaling.x_scale", np.zeros(2)), "not positive"),
        (lambda f: f.put("extra", np.zeros(2)), "no part of the model uses"),
        (lambda f: f.structure.pop("model"), "model"),
        (lambda f: state(f).update(n_features_in_=3), "2 length scales"),
        (lambda f: state(f).update(n_inducing=-4), "n_inducing"),
        (
            lambda f: state(f).update(
                likelihood_={"object": {"class": "SVGPRegressor", "state": {}}}
            ),
            "",
        ),
        (lambda f: state(f).update(history_={"same": 10**6}), "does not exist"),
        (lambda f: f.metadata.update(format="other"), "another program"),
    ],
)
def test_what_a_stranger_may_write(change, message, path, tmp_path):
    forged = Forged(path)
    change(forged)
    with pytest.raises(ModelFileError, match=message):
        model = load(forged.write(tmp_path / "forged"))
        model.predict(X)


@pytest.mark.parametrize("at", [-1, 40])
@pytest.mark.parametrize("name", ["_near", "experts_"])
def test_indices_of_rows_that_do_not_exist(name, at, tmp_path):
    """A negative one would be another row."""
    settings = {"optimizer": None, "random_state": 0}
    near = NNGPRegressor(n_neighbors=8, calibrate=False, **settings)
    model = near if name == "_near" else PoERegressor(expert_size=10, **settings)
    model.fit(X, Y)
    rows = model._near if name == "_near" else model.experts_[1]
    rows.flat[3] = at
    save(model, tmp_path / "model")
    with pytest.raises(ModelFileError, match=f"{name}.* refers to rows that do not exist"):
        load(tmp_path / "model")


def test_shapes_that_a_dataclass_declares(tmp_path):
    """Draws of functions have as many weights of features as of rows."""
    settings = {"solver": "cg", "posterior": "pathwise", "optimizer": None, "random_state": 0}
    save(IterativeGPRegressor(**settings).fit(X, Y), tmp_path / "model")
    forged = Forged(tmp_path / "model")
    (name,) = [name for name in forged.header if "representer_weights" in name]
    forged.put(name, np.ascontiguousarray(forged.array(name)[:, 1:]))
    with pytest.raises(ModelFileError, match="weights has the shape .* does not fit the rest"):
        load(forged.write(tmp_path / "forged"))


def test_targets_of_an_estimator_and_of_the_one_below_it(tmp_path):
    """A wrong number of scales would give predictions a wrong shape."""
    below = SGPRRegressor(n_inducing=6, max_iter=3, small_table="method")
    made = MeanFunctionRegressor(below, LinearRegression(), random_state=0)
    save(made.fit(X, Y), tmp_path / "good")
    for above in ([], ["estimator_", "object", "state"]):
        forged = Forged(tmp_path / "good")
        forged.put("scales", np.ones(40))
        at = state(forged)
        for name in above:
            at = at[name]
        at["_y_train_std"] = {"array": {"tensor": "scales"}}
        with pytest.raises(ModelFileError, match="is for 40 targets|does not fit the rest"):
            load(forged.write(tmp_path / "forged"))


def state(forged):
    return forged.structure["model"]["object"]["state"]


@pytest.mark.parametrize(
    "text", ['{"schema":1,"schema":1}', '{"schema":NaN}', "[" * 10**5, "{}", "1"]
)
def test_structures_that_are_none(text, path, tmp_path):
    with pytest.raises(ModelFileError):
        load(Forged(path).write(tmp_path / "forged", structure=text))
    with pytest.raises(ModelFileError):
        load(Forged(path).write(tmp_path / "forged", header=text))


@pytest.mark.parametrize("filler", ["[],", "{},", '{"a":[]},', '"\\ud83d\\ude00",', '"a",'])
@pytest.mark.parametrize("size", [500_000, 15_000_000])
def test_texts_that_would_take_much_memory(filler, size, path, tmp_path):
    text = '{"schema":1,"model":[' + filler * (size // len(filler)) + "1]}"
    forged = Forged(path).write(tmp_path / "huge", header=text)
    assert memory(forged) - forged.stat().st_size / 2**20 < 100
    with pytest.raises(ModelFileError):
        load(forged)


def test_a_file_costs_the_memory_of_its_tensors(path, tmp_path):
    forged = Forged(path)
    forged.put("large", np.ones((2000, 1000)))
    state(forged)["_weights"] = [{"array": {"tensor": "large"}}]
    file = forged.write(tmp_path / "forged")
    # One array, and a little for everything else.
    assert load(file)._weights[0].nbytes == 16e6
    assert memory(file) < 1.1 * file.stat().st_size / 2**20


@pytest.mark.parametrize("code, width", [("BF16", 2), ("F8_E4M3", 1), ("C64", 8)])
def test_dtypes_that_only_other_programs_write(code, width, path, tmp_path):
    forged = Forged(path)
    forged.header["inducing_points_"] = {"dtype": code, "shape": [6, 2]}
    forged.data["inducing_points_"] = bytes(12 * width)
    with pytest.raises(ModelFileError, match=f"inducing_points_' has the unknown dtype '{code}'"):
        load(forged.write(tmp_path / "forged"))


def test_booleans_other_than_0_and_1(path, tmp_path):
    forged = Forged(path)
    forged.put("flags", np.ones(3, bool))
    forged.data["flags"] = bytes([0, 1, 2])
    state(forged)["history_"] = {"array": {"tensor": "flags"}}
    with pytest.raises(ModelFileError, match="'flags' has booleans other than 0 and 1"):
        load(forged.write(tmp_path / "forged"))


@pytest.mark.parametrize("key", ["dtype", "scaling", "format"])
def test_a_header_with_a_key_twice(key, path, tmp_path):
    """The library would take the last one."""
    raw = Forged(path).write(tmp_path / "good").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + length].decode()
    old, new = {
        "dtype": ('"dtype": "F64"', '"dtype": "F64", "dtype": "F64"'),
        "scaling": ('"_scaling.x_mean": ', '"_scaling.x_mean": {}, "_scaling.x_mean": '),
        "format": ('"format": ', '"format": "", "format": '),
    }[key]
    text = text.replace(old, new, 1).encode()
    (tmp_path / "forged").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    with pytest.raises(ModelFileError, match="its header has the same key twice"):
        load(tmp_path / "forged")


def test_arrays_that_are_stored_as_one_number_have_a_limit(path, tmp_path):
    forged = Forged(path)
    forged.put("one", np.ones(1))
    state(forged)["history_"] = {"filled": {"shape": [10**6, 10**3], "tensor": "one"}}
    with pytest.raises(ModelFileError, match="more memory than the file"):
        load(forged.write(tmp_path / "forged"))


def test_files_of_other_kinds(tmp_path):
    import joblib
    from safetensors.numpy import save_file

    save_file({"a": np.ones(3)}, tmp_path / "tensors")
    joblib.dump(SVGPRegressor(), tmp_path / "pickle")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("nothing " * 100)
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("../x", "y" * 100)
    for name in ("tensors", "pickle", "empty", "text", "zip"):
        with pytest.raises(ModelFileError, match=f"{name} cannot be loaded"):
            load(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="pipe cannot be loaded: it is not a regular file"):
        load(tmp_path / "pipe")
    for name in ("nothing", "."):
        with pytest.raises(OSError):
            load(tmp_path / name)


@pytest.mark.parametrize(
    "trees",
    [
        RandomForestRegressor(n_estimators=1, max_depth=3, random_state=0),
        HistGradientBoostingRegressor(max_iter=2, max_leaf_nodes=5),
    ],
    ids=lambda trees: type(trees).__name__,
)
@pytest.mark.parametrize("child", [10**6, 0])
def test_trees_that_point_outside_or_in_circles(trees, child, tmp_path):
    """Compiled code follows these numbers without a look."""
    model = trees.fit(X, Y)
    forged_tree = model.estimators_[0].tree_ if hasattr(model, "estimators_") else None
    if forged_tree is not None:
        forged_tree.children_left[0] = child
    else:
        model._predictors[0][0].nodes["left"][0] = child
    save(model, tmp_path / "model")
    with pytest.raises(ModelFileError, match="outside of it or in cycles"):
        load(tmp_path / "model")


def test_the_fuzzer_notices(tmp_path, monkeypatch):
    """An error of another class, and predictions that are no numbers, are failures."""
    fuzzer = Fuzzer(tmp_path, 0, names=("svgp",))
    (source, *_), good = fuzzer.files, fuzzer.predicted
    assert outcome(source, good[source])[0] == "same"
    monkeypatch.setattr(SVGPRegressor, "predict", lambda self, X: np.full(len(X), np.nan))
    assert outcome(source, good[source])[0] == "failed"
    monkeypatch.setattr(json, "loads", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr("skscalablegp.files._files.said_by", lambda *args: KeyError())
    assert outcome(source, good[source])[0] == "failed"


@pytest.mark.parametrize("structure", ["additive", "product"])
def test_a_grid_of_other_points_than_its_sums_is_refused(structure, tmp_path):
    X = np.random.default_rng(0).uniform(size=(50, 2))
    model = KISSGPRegressor(grid_size=8, structure=structure, optimizer=None).fit(X, X[:, 0])
    (first, *more), *others = model.grid_.components
    forged = (replace(first, size=8000), *more), *others
    model.grid_ = replace(model.grid_, components=forged)
    save(model, tmp_path / "model", compact=True)
    with pytest.raises(ModelFileError, match="a grid of .* points has .* sums"):
        load(tmp_path / "model")
