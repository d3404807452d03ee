"""Validation of input: accepted values, and errors that name the value and the remedy."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import BayesianRidge

from skscalablegp import (
    AutoGPRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    NNGPRegressor,
    PoERegressor,
    StackedGPRegressor,
)
from skscalablegp import _validation as validation
from skscalablegp._validation import (
    available_memory,
    check_duplicates,
    check_memory,
    check_n_targets,
    check_noise,
    check_noise_variance,
    check_return_flags,
    format_bytes,
    resolve_dtype,
    validated,
)


@pytest.mark.parametrize(
    "alpha", [2, 2.0, np.float32(2), np.array(2.0), [2.0], np.array([2]), np.full(4, 2.0), [2] * 4]
)
def test_noise_becomes_one_value_per_row(alpha):
    noise = check_noise(alpha, 4)
    assert noise.dtype == np.float64
    np.testing.assert_array_equal(noise, np.full(4, 2.0))


def test_noise_is_a_copy():
    alpha = np.array([1.0, 2.0])
    check_noise(alpha, 2)[0] = 7.0
    assert alpha[0] == 1.0


@pytest.mark.parametrize(
    "alpha, message",
    [
        (
            np.ones(7),
            r"alpha must be a scalar or an array .* entries as y\. \(7 != 10\)",
        ),
        ([], r"\(0 != 10\)"),
        (np.ones((10, 1)), r"alpha has shape \(10, 1\) for 10 rows"),
        (-0.5, r"alpha must be non-negative, got -0\.5\."),
        (np.array([1.0] * 3 + [-2.0] * 2 + [1.0] * 5), "got -2 in entry 3 and 1 more"),
        (np.nan, "alpha must be finite, got nan"),
        (np.array([np.inf] + [1.0] * 9), "alpha must be finite, got inf in entry 0"),
        (1j, "alpha must hold real numbers, got 1j"),
        ("large", "alpha must hold real numbers, got 'large'"),
        ([None] * 10, "alpha must"),
    ],
)
def test_wrong_noise(alpha, message):
    with pytest.raises(ValueError, match=message):
        check_noise(alpha, 10)


def test_noise_variance():
    assert check_noise_variance(None, 3) is None
    np.testing.assert_array_equal(check_noise_variance([1, 2, 3], 3), [[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(check_noise_variance([1, 2], 2, 2), [[1.0, 1.0], [2.0, 2.0]])
    np.testing.assert_array_equal(check_noise_variance([[1, 2]], 1, 2), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="noise_variance must be a scalar or an array, got"):
        check_noise_variance([[1, 2], [3]], 2, 2)
    with pytest.raises(ValueError, match=r"noise_variance has shape \(2, 3\) for 2 rows"):
        check_noise_variance(np.ones((2, 3)), 2, 2)
    with pytest.raises(ValueError, match=r"noise_variance must be .* \(2 != 3\)"):
        check_noise_variance([1.0, 2.0], 3)
    with pytest.raises(ValueError, match="noise_variance must be non-negative, got -1 in entry 1"):
        check_noise_variance([1.0, -1.0, 0.0], 3)


def test_duplicates_are_counted():
    X = np.array([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="2 of the 4 rows of X repeat .* Set alpha .* WhiteKernel"):
        check_duplicates(X, 0.0)
    with pytest.raises(ValueError, match="1 of the 2 rows of X repeats an earlier row"):
        check_duplicates(X[[0, 3]], np.zeros(2))


def test_duplicates_pass_with_noise_between_them():
    X = np.array([[0.0], [0.0], [1.0]])
    check_duplicates(X, 1e-10)
    check_duplicates(X, np.array([0.0, 1e-3, 0.0]))  # one noisy copy keeps the matrix regular
    check_duplicates(X[1:], 0.0)
    check_duplicates(X[:0], 0.0)


def test_return_flags():
    check_return_flags(True, False)
    check_return_flags(False, True)
    with pytest.raises(RuntimeError, match="At most one of return_std or return_cov"):
        check_return_flags(True, True)


def test_n_targets():
    assert check_n_targets(None, np.ones(3)) == 1
    assert check_n_targets(2, np.ones((3, 2))) == 2
    with pytest.raises(ValueError, match=r"Got 1 != 2"):
        check_n_targets(2, np.ones(3))


def test_dtypes():
    assert resolve_dtype("auto", 10, threshold=10) is torch.float64
    assert resolve_dtype("auto", 11, threshold=10) is torch.float32
    assert resolve_dtype("float32", 1, threshold=10) is torch.float32
    assert resolve_dtype("float64", 99, threshold=10) is torch.float64
    for wrong in ("float16", np.float32, None, []):
        with pytest.raises(ValueError, match="use 'auto', 'float32' or 'float64'"):
            resolve_dtype(wrong, 1, threshold=10)


def test_sizes_for_people():
    assert [format_bytes(b) for b in (0, 1023, 1536, 3 * 2**30, 2**50)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "3.0 GiB",
        "1024.0 TiB",
    ]


def test_memory_of_this_machine():
    free = available_memory()
    assert free is None or 0 < free < 2**60


def test_memory_names_need_limit_and_remedy(stand_in):
    stand_in("available_memory", lambda device: 4 * 2**30)
    check_memory(3 * 2**30, "H", "use less")
    with pytest.raises(
        MemoryError,
        match=r"keeping H needs 8\.0 GiB, but the memory available on cpu is 4\.0 GiB: use less\.",
    ):
        check_memory(8 * 2**30, "keeping H", "use less")
    with pytest.raises(MemoryError, match=r"the memory budget is 1\.0 GiB: use less"):
        check_memory(3 * 2**30, "H", "use less", limit=2**30)
    with pytest.raises(MemoryError, match="the memory available on cpu"):
        check_memory(8 * 2**30, "H", "use less", limit=2**40)


def test_memory_unknown(stand_in):
    stand_in("available_memory", lambda device: None)
    check_memory(1e30, "H", "use less")
    with pytest.raises(MemoryError):
        check_memory(1e30, "H", "use less", limit=1)


def _group(folder, names, limit, usage, cache):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


@pytest.mark.parametrize("names, line, top", [(V1, "4:memory:", "memory"), (V2, "0::", "")])
def test_control_groups_leave_the_tightest(tmp_path, names, line, top):
    membership = tmp_path / "membership"
    membership.write_text(f"1:cpu:/\n{line}/outer/inner\n")
    root = tmp_path / "cgroup"
    _group(root / top, names, 2**63 - 4096, 500, 0)
    _group(root / top / "outer", names, 1000, 400, 100)
    _group(root / top / "outer" / "inner", names, 900, 100, 0)
    assert validation._cgroup_memory(root, membership) == 700
    _group(root / top / "outer", names, 1000, 2000, 0)
    assert validation._cgroup_memory(root, membership) == 0


def test_control_groups_without_limit(tmp_path):
    membership = tmp_path / "membership"
    assert validation._cgroup_memory(tmp_path, membership) is None
    membership.write_text("0::/\n")
    _group(tmp_path, V2, "max", 100, 0)
    assert validation._cgroup_memory(tmp_path, membership) is None
    membership.write_text("0::/only/on/the/host\n")  # a container that sees its own root
    _group(tmp_path, V2, 800, 100, 0)
    assert validation._cgroup_memory(tmp_path, membership) == 700


def test_system_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    assert validation._system_memory(meminfo) == 7 * 1024
    physical = validation._system_memory(tmp_path / "missing")
    assert physical is None or physical > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_memory():
    assert 0 < available_memory("cuda:0") <= torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(MemoryError, match="the memory available on cuda:0 is"):
        check_memory(2**60, "H", "use less", device="cuda:0")


@pytest.mark.parametrize("limit, used", [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_limits_of_the_process_count(tmp_path, monkeypatch, limit, used):
    resource = pytest.importorskip("resource")
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\n{used}:\t    1000 kB\n")
    most = {getattr(resource, limit): 5000 * 1024}
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (most.get(which, resource.RLIM_INFINITY), 0)
    )
    assert validation._process_memory(limit, used, status) == 4000 * 1024
    for other in {"RLIMIT_AS", "RLIMIT_DATA"} - {limit}:
        assert validation._process_memory(other, used, status) is None
    assert validation._process_memory(limit, "VmOther", status) is None
    # The smallest limit is what a fit may take.
    if Path("/proc/self/status").exists():
        assert available_memory() == 0


def test_texts_in_tables_are_named_with_a_remedy():
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame({"size": [1.0, 2, 3], "city": ["a", "b", "a"]})
    with pytest.raises(ValueError, match=r"strings in column 'city' .* OneHotEncoder") as caught:
        NNGPRegressor().fit(X, [1.0, 2, 3])
    assert "NNGPRegressor" in str(caught.value)
    with pytest.raises(ValueError, match="strings in a value"):
        NNGPRegressor().fit(np.array([["a"], ["b"]], dtype=object), [1.0, 2])
    with pytest.raises(ValueError) as caught:
        NNGPRegressor().fit([[1.0], [2]], ["a", "b"])
    assert "X must" not in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((3, 2)),
        np.zeros((3, 2), dtype=np.float32),
        np.zeros((3, 2), dtype=int),
        np.asfortranarray(np.ones((3, 2)))[::-1],
        np.zeros((0, 2)),
        np.zeros((3, 3)),
        np.zeros(2),
        np.array([[0.0, np.nan]]),
        np.array([[0.0, -np.inf]]),
        np.array([[0.0, -1e31]]),
        np.ma.masked_array([[0.0, 1.0]]),
        np.array([[0.0, 1.0]], dtype=">f8"),
        [[0.0, 1.0]],
    ],
    ids=str,
)
def test_rows_that_need_no_check_are_those_that_every_check_accepts(rows, stand_in):
    """The shortcut for plain arrays changes neither answers nor errors."""
    model = BayesianRidge().fit([[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0])

    def answer():
        try:
            found = validated(model, rows, dtype=[np.float64, np.float32], reset=False)
        except ValueError as error:
            return str(error)
        return found

    got = answer()
    stand_in("_is_valid", lambda *args, **rules: False)
    expected = answer()
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    assert getattr(got, "dtype", None) == getattr(expected, "dtype", None)


def test_names_of_columns_are_checked_for_arrays_too():
    table = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, 0.0]})
    model = BayesianRidge().fit(table, [0.0, 1.0])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        validated(model, table.to_numpy(), dtype=np.float64, reset=False)


class Arrow:
    """What pyarrow.Table has: `columns` are arrays, and `column_names` their names."""

    def __init__(self, frame):
        self._frame, self.shape = frame, frame.shape
        self.columns = [frame[name].to_numpy() for name in frame]

    def __arrow_c_stream__(self, requested_schema=None):
        raise NotImplementedError

    def __array__(self, dtype=None, copy=None):
        return self._frame.to_numpy(dtype)

    def to_pandas(self):
        return self._frame


FRAME = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 2)), columns=["a", "b"])


@pytest.mark.parametrize("kind", [IterativeGPRegressor, AutoGPRegressor])
def test_tables_of_arrow_are_read_as_data_frames(kind):
    first = {"members": ["linear"]} if kind is AutoGPRegressor else {}
    fits = [kind(**first, random_state=0).fit(X, FRAME["a"]) for X in (Arrow(FRAME), FRAME)]
    assert list(fits[0].feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(fits[0].predict(Arrow(FRAME)), fits[1].predict(FRAME))


def test_other_streams_of_columns_are_refused_with_the_remedy():
    class Stream:
        __arrow_c_stream__ = None

    with pytest.raises(TypeError, match=r"Stream.*polars.DataFrame\(X\)"):
        validated(NNGPRegressor(), Stream())


@pytest.mark.parametrize("kind", [NNGPRegressor, AutoGPRegressor, HeteroscedasticRegressor])
@pytest.mark.parametrize("text", [False, True])
def test_columns_of_one_name_are_refused(kind, text):
    X = FRAME.assign(c="x" if text else 1.0).set_axis(["a", "b", "a"], axis=1)
    with pytest.raises(ValueError, match=r"several columns of the same name \('a'\)"):
        kind().fit(X, FRAME["a"])


@pytest.mark.exact_input
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [NNGPRegressor, PoERegressor, HeteroscedasticRegressor])
def test_targets_of_half_precision_are_those_of_double(kind):
    y = (100 * FRAME["a"]).to_numpy(np.float16)
    models = [kind(random_state=0).fit(FRAME, y.astype(dtype)) for dtype in ("f2", "f8")]
    for one, other in zip(*(m.predict(FRAME, return_std=True) for m in models), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [AutoGPRegressor, HeteroscedasticRegressor, StackedGPRegressor])
def test_estimators_with_one_target_name_the_remedy(kind):
    with pytest.raises(ValueError, match=rf"1d array.*MultiOutputRegressor\({kind.__name__}"):
        kind().fit(FRAME, FRAME)
