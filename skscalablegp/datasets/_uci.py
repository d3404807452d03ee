"""The regression sets of papers on scalable Gaussian processes, with their published splits."""

import gzip
import operator
import os
import re
from pathlib import Path

import numpy as np
from sklearn.datasets import get_data_home
from sklearn.utils import Bunch

from skscalablegp.datasets._download import check_sha256, fetch_file

SOURCE = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"
FILES = ("data.csv.gz", "test_mask.csv.gz")

HERE = Path(__file__).parent
# SHA-256 of the data and of the test mask of each set, as ``sha256sum`` writes them.
CHECKSUMS: dict[str, list[str]] = {}
for line in (HERE / "SHA256SUMS").read_text().splitlines():
    expected, path = line.split()
    CHECKSUMS.setdefault(path.partition("/")[0], []).append(expected)


def fetch_uci(name, split=None, return_X_y=False, data_home=None, download_if_missing=True):
    """Load a regression set with its published train/test splits.

    It looks in the folder named by the environment variable ``SKSCALABLEGP_DATA``, then in the
    cache, and downloads otherwise. The folder holds ``uci/NAME/data.csv.gz`` (comma-separated, the
    target in the last column) and ``uci/NAME/test_mask.csv.gz`` (one column for each split, 1 for a
    test row); any NAME in it can be loaded, also one that is not in the list below.

    Parameters
    ----------
    name : str
        One of "airfoil", "bike", "concrete", "elevators", "energy", "housing", "keggdirected",
        "kin40k", "pol", "protein", "yacht", or a folder of the offline data.

    split : int, default=None
        Number of the published split, 0 to 9. None gives the whole table.

    return_X_y : bool, default=False
        Return arrays instead of a `Bunch`.

    data_home : str or path-like, default=None
        Folder of scikit-learn's data cache; files are kept in ``skscalablegp/uci`` below it. None
        means the one that `sklearn.datasets.get_data_home` gives.

    download_if_missing : bool, default=True
        Download a set that is neither in the offline folder nor in the cache. False raises an
        OSError instead.

    Returns
    -------
    dataset : :class:`~sklearn.utils.Bunch`
        With

        data : ndarray of shape (n, d)
            All rows.
        target : ndarray of shape (n,)
            Their targets.
        test_mask : ndarray of shape (n, 10), bool
            True where a row is a test row of the split.
        feature_names : list of str
            "x0", "x1", ...; the source has no names.
        target_names : list of str
            "y".
        DESCR : str
            What the data are, and their licence.
        X_train, X_test, y_train, y_test : ndarray
            Only with ``split``: that split's rows.

    arrays : tuple of ndarray
        With ``return_X_y=True``: ``(data, target)``, or with ``split`` also given
        ``(X_train, X_test, y_train, y_test)``, the order of
        :func:`~sklearn.model_selection.train_test_split`.

    Raises
    ------
    ValueError
        For an unknown name or split; the message lists the known ones.
    OSError
        For a file that is missing or cannot be downloaded, or whose checksum is wrong.

    Notes
    -----
    The last two columns of "bike" contain its target: exp(y) is a linear function of them, with an
    R2 of 0.9999999985. Leave them out, unless you compare with scores of papers.

    Examples
    --------
    >>> from skscalablegp.datasets import fetch_uci
    >>> X_train, X_test, y_train, y_test = fetch_uci(
    ...     "yacht", split=0, return_X_y=True)  # doctest: +SKIP
    >>> X_train.shape  # doctest: +SKIP
    (277, 6)
    """
    _check_name(name)
    data_path, mask_path = _offline_files(name) or _cached_files(
        name, data_home, download_if_missing
    )
    table = _read_csv(data_path, np.float64)
    test_mask = _read_csv(mask_path, np.int8).astype(bool)
    if len(test_mask) != len(table):
        raise ValueError(
            f"{mask_path} has {len(test_mask)} rows and {data_path} has {len(table)}; "
            "they must agree."
        )
    X, y = table[:, :-1], table[:, -1]
    dataset = Bunch(
        data=X,
        target=y,
        test_mask=test_mask,
        feature_names=[f"x{j}" for j in range(X.shape[1])],
        target_names=["y"],
        DESCR=(HERE / "uci.txt").read_text().format(name=name, n=len(X), d=X.shape[1]),
    )
    if split is None:
        return (X, y) if return_X_y else dataset
    test = test_mask[:, _check_split(split, test_mask.shape[1])]
    parts = X[~test], X[test], y[~test], y[test]
    if return_X_y:
        return parts
    dataset.update(zip(("X_train", "X_test", "y_train", "y_test"), parts, strict=True))
    return dataset


def _offline_folder():
    named = os.environ.get("SKSCALABLEGP_DATA")
    if not named:
        return None
    folder = Path(named).expanduser() / "uci"
    if not folder.is_dir():
        raise OSError(f"SKSCALABLEGP_DATA={named} has no folder named uci.")
    return folder


def _known_names():
    folder = _offline_folder()
    offline = [] if folder is None else [p.name for p in folder.iterdir() if p.is_dir()]
    return sorted({*CHECKSUMS, *offline})


def _check_name(name):
    # The name becomes part of a path, which must not lead elsewhere.
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"name must be one of {_known_names()}, got {name!r}.")
    if name not in CHECKSUMS and name not in _known_names():
        raise ValueError(
            f"Unknown data set {name!r}; known are {', '.join(_known_names())}. Others can be put "
            "into the folder that SKSCALABLEGP_DATA names."
        )


def _check_split(split, n_splits):
    try:
        split = operator.index(split)
    except TypeError:
        raise ValueError(f"split must be None or an integer, got {split!r}.") from None
    if not 0 <= split < n_splits:
        raise ValueError(f"split must be None or 0 to {n_splits - 1}, got {split}.")
    return split


def _offline_files(name):
    """Paths in the offline folder, or None where it has no such set."""
    folder = _offline_folder()
    if folder is None or not (folder / name).is_dir():
        return None
    paths = [folder / name / file for file in FILES]
    for path, expected in zip(paths, CHECKSUMS.get(name, (None, None)), strict=True):
        if not path.exists():
            raise OSError(f"{path} does not exist.")
        if expected is not None:
            check_sha256(path, expected)
    return paths


def _cached_files(name, data_home, download):
    folder = Path(get_data_home(data_home)) / "skscalablegp" / "uci" / name
    return [
        fetch_file(f"{SOURCE}/{name}/{file}", folder / file, expected, download=download)
        for file, expected in zip(FILES, CHECKSUMS[name], strict=True)
    ]


def _read_csv(path, dtype):
    with gzip.open(path, "rt", encoding="ascii") as file:
        return np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=2)
