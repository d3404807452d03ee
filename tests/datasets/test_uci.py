"""fetch_uci: the offline folder, the cache and downloads, with verified checksums."""

import gzip
import hashlib
import urllib.request

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skscalablegp.datasets import fetch_uci

SHAPES = {"pol": (15_000, 26), "yacht": (308, 6), "bike": (17_379, 17), "airfoil": (1503, 5)}


@pytest.fixture
def small_set():
    """A table of 20 rows and 3 columns, and its ten splits, as the files have them."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(20, 4)).round(6)
    test_mask = np.zeros((20, 10), dtype=int)
    for split in range(10):
        test_mask[rng.choice(20, size=2, replace=False), split] = 1
    return table, test_mask


def write_set(folder, table, test_mask):
    folder.mkdir(parents=True)
    for name, values, form in [("data", table, "%.6f"), ("test_mask", test_mask, "%d")]:
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, values, delimiter=",", fmt=form)


FILES = ("data.csv.gz", "test_mask.csv.gz")


@pytest.fixture
def offline(tmp_path, monkeypatch, small_set):
    """An offline folder with one set that is not among the published ones."""
    write_set(tmp_path / "uci" / "mine", *small_set)
    monkeypatch.setenv("SKSCALABLEGP_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def source(tmp_path, stand_in, monkeypatch, small_set):
    """A source of downloads on this disk, with one published set; no offline folder."""
    write_set(tmp_path / "source" / "small", *small_set)
    files = [tmp_path / "source" / "small" / name for name in FILES]
    sums = tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    monkeypatch.delenv("SKSCALABLEGP_DATA", raising=False)
    stand_in("SOURCE", (tmp_path / "source").as_uri())
    stand_in("CHECKSUMS", {"small": sums})
    return tmp_path / "source" / "small"


def test_any_name_in_the_offline_folder_loads(offline, small_set):
    table, test_mask = small_set
    dataset = fetch_uci("mine")
    assert_array_equal(dataset.data, table[:, :-1])
    assert_array_equal(dataset.target, table[:, -1])
    assert_array_equal(dataset.test_mask, test_mask.astype(bool))
    assert dataset.feature_names == ["x0", "x1", "x2"]
    assert "X_train" not in dataset and "20 rows" in dataset.DESCR
    X, y = fetch_uci("mine", return_X_y=True)
    assert X.shape == (20, 3) and y.shape == (20,)


@pytest.mark.parametrize("split", [0, 9, np.int64(3)])
def test_splits_part_the_rows(offline, small_set, split):
    table, test_mask = small_set
    test = test_mask[:, split].astype(bool)
    dataset = fetch_uci("mine", split=split)
    assert_array_equal(dataset.X_test, table[test, :-1])
    assert_array_equal(dataset.X_train, table[~test, :-1])
    X_train, X_test, y_train, y_test = fetch_uci("mine", split=split, return_X_y=True)
    assert_array_equal(X_train, dataset.X_train)
    assert_array_equal(X_test, dataset.X_test)
    assert_array_equal(y_train, table[~test, -1])
    assert_array_equal(y_test, table[test, -1])


@pytest.mark.parametrize("split", [10, -1, "0", 1.5])
def test_unknown_split(offline, split):
    with pytest.raises(ValueError, match="split must be None or"):
        fetch_uci("mine", split=split)


@pytest.mark.parametrize("name", ["nothing", "../uci/mine", "", ".", "a/b", None, 3])
def test_unknown_name_lists_the_known_ones(offline, name):
    with pytest.raises(ValueError, match="airfoil.*mine.*yacht"):
        fetch_uci(name)


def test_offline_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("SKSCALABLEGP_DATA", str(tmp_path))
    with pytest.raises(OSError, match="has no folder named uci"):
        fetch_uci("pol")


def test_published_set_with_other_bytes_is_refused_offline(offline, small_set):
    write_set(offline / "uci" / "pol", *small_set)
    with pytest.raises(OSError, match="SHA-256 is .*, expected 1c1612635295"):
        fetch_uci("pol")


def test_incomplete_set_names_the_missing_file(offline):
    (offline / "uci" / "mine" / "test_mask.csv.gz").unlink()
    with pytest.raises(OSError, match="test_mask.csv.gz does not exist"):
        fetch_uci("mine")


def test_mask_of_another_table(offline, small_set):
    table, test_mask = small_set
    write_set(offline / "uci" / "torn", table, test_mask[:-1])
    with pytest.raises(ValueError, match="has 19 rows and .* has 20"):
        fetch_uci("torn")


def test_download_is_kept_and_read_again(source, tmp_path, stand_in, small_set):
    home = tmp_path / "home"
    first = fetch_uci("small", data_home=home)
    kept = home / "skscalablegp" / "uci" / "small"
    assert sorted(p.name for p in kept.iterdir()) == sorted(FILES)
    stand_in("SOURCE", "file:///gone")
    again = fetch_uci("small", data_home=home, download_if_missing=False)
    assert_array_equal(first.data, again.data)
    assert_array_equal(first.data, small_set[0][:, :-1])


def test_offline_folder_without_the_set_falls_back_to_downloads(
    source, offline, tmp_path, small_set
):
    assert_array_equal(fetch_uci("small", data_home=tmp_path / "home").data, small_set[0][:, :-1])


def test_download_if_missing_false(source, tmp_path):
    with pytest.raises(OSError, match="download_if_missing=False"):
        fetch_uci("small", data_home=tmp_path / "home", download_if_missing=False)
    assert not list((tmp_path / "home").rglob("*.gz"))


def test_download_with_other_bytes_leaves_nothing(source, tmp_path):
    (source / "data.csv.gz").write_bytes(b"version https://git-lfs")
    with pytest.raises(OSError, match="is not the published file"):
        fetch_uci("small", data_home=tmp_path / "home")
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()]


def test_damaged_cache_is_replaced(source, tmp_path):
    home = tmp_path / "home"
    expected = fetch_uci("small", data_home=home).data
    kept = home / "skscalablegp" / "uci" / "small" / "data.csv.gz"
    kept.write_bytes(kept.read_bytes()[:50])
    with pytest.raises(OSError, match="is not the published file"):
        fetch_uci("small", data_home=home, download_if_missing=False)
    with pytest.warns(UserWarning, match="Downloading it again"):
        assert_array_equal(fetch_uci("small", data_home=home).data, expected)


def test_no_network_names_the_way_out(source, tmp_path, stand_in):
    stand_in("SOURCE", (tmp_path / "nowhere").as_uri())
    with pytest.raises(OSError, match="Could not download .* SKSCALABLEGP_DATA"):
        fetch_uci("small", data_home=tmp_path / "home")


def test_connection_that_breaks_off_leaves_nothing(source, tmp_path, monkeypatch):
    class Breaks:
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return False

        def read(self, size):
            raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: Breaks())
    with pytest.raises(OSError, match="timed out"):
        fetch_uci("small", data_home=tmp_path / "home")
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()]


def test_a_download_without_end_is_ended(source, tmp_path, thresholds):
    thresholds("datasets", MOST_BYTES=40)
    with pytest.raises(OSError, match="more than 40 bytes"):
        fetch_uci("small", data_home=tmp_path / "home")
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()]


@pytest.mark.parametrize("name", SHAPES)
def test_published_sets(data_folder, name):
    if not (data_folder / "uci" / name).is_dir():
        pytest.skip(f"the offline folder has no {name}")
    dataset = fetch_uci(name, split=0)
    assert dataset.data.shape == SHAPES[name]
    assert dataset.test_mask.shape == (SHAPES[name][0], 10)
    assert np.isfinite(dataset.data).all() and np.isfinite(dataset.target).all()
    # The ten test sets do not overlap.
    assert dataset.test_mask.sum(axis=1).max() == 1
