"""Damaged and hostile files: each ends in one error, or is a model or a fit that still predicts.

    python tests/fuzz/files.py --cases 10000 --seed 0

A case changes a good file: it is cut, a bit is flipped, bytes are overwritten, or a part is changed
as its writer could have done, with right checksums. `load` must refuse it by a ModelFileError, or
return a model whose predictions are finite or end in an error. A checkpoint, left by a fit that was
ended by force, must be refused in the same way by the fit that finds it, or that fit must end. The
command also fails if a case takes more than a second of processor time, or 100 MB of memory beyond
the size of the file.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.base import clone

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "files"))

from files_forge import Forged, places

X = np.random.default_rng(0).uniform(-2, 2, (40, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
NEW = X[:3] + 0.1

# What takes the place of a value in JSON.
VALUES = [None, True, -1, 0, 1, 2**31, 2**62, -(2**70), 1e308, -1e-300, "", "os.system", "../../x"]
VALUES += ["\u0000", "x" * 10_000, [], {}, [[]], {"same": 0}, {"same": 10**9}, {"float": "nan"}]
VALUES += [{"float": "inf"}, {"integer": "f" * 99}, {"number": ["f8", 1]}, {"tuple": [1, 2]}]
VALUES += [{"named": "os.system"}, {"object": {"class": "SVGPRegressor", "state": {}}}]
VALUES += [{"filled": {"shape": [10**6, 10**6], "tensor": "x"}}, {"dict": {"a": 1}}, {"list": []}]
VALUES += [
    {"made": {"class": "kernels.TorchKernel", "arguments": [None, 10**9]}},
    {"slice": [0, 1]},
]


def models(names=None):
    """Small fitted models by name; each part of the format is in one of them."""
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import skscalablegp as s

    forest = RandomForestRegressor(n_estimators=2, max_depth=3, random_state=0)
    boosted = HistGradientBoostingRegressor(max_iter=3, max_leaf_nodes=4)
    pairs = [("a", s.RFFRegressor(n_components=10, max_iter=2)), ("forest", forest)]
    made = {
        "svgp": s.SVGPRegressor(n_inducing=6, max_iter=3),
        "iterative": s.IterativeGPRegressor(solver="cg", posterior="pathwise", max_iter=2),
        "nngp": s.NNGPRegressor(n_neighbors=8, subset_size=15, n_centers=20),
        "experts": s.PoERegressor(expert_size=10, max_iter=3),
        "grid": s.KISSGPRegressor(grid_size=8, structure="additive", max_iter=2),
        "sampled": s.QSGPRegressor(inference="stochastic", n_components=64, max_iter=3),
        "deep": s.SCGDDKLRegressor(feature_extractor=(8,), max_epochs=3),
        "auto": s.AutoGPRegressor(["linear", "exact"]),
        "mean": s.MeanFunctionRegressor(s.SGPRRegressor(max_iter=3), boosted, n_folds=2),
        "pipeline": make_pipeline(StandardScaler(), s.StackedGPRegressor(pairs)),
    }
    made = {name: made[name] for name in names or made}
    for model in made.values():
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        model.fit(X, Y)
    return made


def fits():
    """Unfitted models whose fits leave checkpoints: records of evaluations, and states of steps."""
    import skscalablegp as s

    return {
        "evaluations": s.IterativeGPRegressor(max_iter=4, random_state=0),
        "steps": s.SVGPRegressor(n_inducing=6, max_iter=6, small_table="method", random_state=0),
    }


class _EndedByForce(Exception):
    pass


def checkpoint(model, folder):
    """The file of a fit that was ended at its third step."""
    steps = []

    def end(step):
        steps.append(step)
        if len(steps) == 3:
            raise _EndedByForce

    with contextlib.suppress(_EndedByForce), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clone(model).set_params(checkpoint=folder, callbacks=end).fit(X, Y)
    (path,) = folder.iterdir()
    return path


class Fuzzer:
    """Draws cases from the files of some models, in a folder."""

    def __init__(self, folder, seed, names=None):
        from skscalablegp import save

        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.files, self.predicted, self.fits = [], {}, {}
        for name, model in models(names).items():
            for compact in (False, True):
                path = folder / f"{name}-{compact}"
                save(model, path, compact=compact)
                self.files.append(path)
                self.predicted[path] = model.predict(NEW)
        for name, model in ({} if names else fits()).items():
            path = checkpoint(model, folder / f"checkpoint-{name}")
            self.files.append(path)
            self.fits[path] = model
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.predicted[path] = clone(model).fit(X, Y).predict(NEW)
        self.again = folder / "again"
        self.again.mkdir()
        self.archives = [path for path in self.files if b"schema.json" in path.read_bytes()]
        self.kinds = [getattr(self, name) for name in dir(self) if name.startswith("kind_")]

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def case(self):
        """(file that was changed, what was done, path of the new file)."""
        source, kind = self.pick(self.files), self.pick(self.kinds)
        if kind == self.kind_archive:
            source = self.pick(self.archives)
        path = self.again / source.name if source in self.fits else self.folder / "case"
        what = kind(source, path)
        return source, f"{source.name} {kind.__name__[5:]} {what}", path

    # -------------------------------------------------------------- damage

    def kind_cut(self, source, path):
        raw = source.read_bytes()
        at = int(self.rng.integers(len(raw)))
        path.write_bytes(raw[:at])
        return at

    def kind_continued(self, source, path):
        path.write_bytes(source.read_bytes() + self.rng.bytes(int(self.rng.integers(1, 100))))

    def kind_flipped(self, source, path):
        raw = bytearray(source.read_bytes())
        at, bit = int(self.rng.integers(len(raw))), int(self.rng.integers(8))
        raw[at] ^= 1 << bit
        path.write_bytes(raw)
        return at, bit

    def kind_overwritten(self, source, path):
        raw = bytearray(source.read_bytes())
        at, some = int(self.rng.integers(len(raw))), self.rng.bytes(int(self.rng.integers(1, 64)))
        raw[at : at + len(some)] = some
        path.write_bytes(raw)
        return at, len(some)

    def kind_length(self, source, path):
        length = self.pick([0, 1, 7, 2**16, 2**24 + 1, 2**31, 2**63, 2**64 - 1])
        path.write_bytes(length.to_bytes(8, "little") + source.read_bytes()[8:])
        return length

    # -------------------------------------------------------------- the header

    def kind_header_field(self, source, path):
        forged = Forged(source)
        forged.write(path)
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        parent, key = self.pick(list(places(header)))
        value = self.pick(VALUES)
        parent[key] = value
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        return key, value

    def kind_header_key(self, source, path):
        raw = source.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        parent, key = self.pick([p for p in places(header) if isinstance(p[0], dict)])
        new = self.pick(["", "../x", "__metadata__", "x" * 300, f"{key}.x"])
        parent[new] = parent.pop(key)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        return key, new

    def kind_twice(self, source, path):
        forged = Forged(source)
        forged.write(path)
        text = forged.metadata["structure"]
        at = self.pick([k for k in range(len(text)) if text.startswith('{"', k)])
        name = text[at + 2 : text.index('"', at + 2)]
        forged.write(path, structure=text[: at + 1] + f'"{name}":1,' + text[at + 1 :])
        return name

    def kind_nested(self, source, path):
        forged = Forged(source)
        depth = self.pick([150, 300, 900, 5000, 200_000])
        opening, closing = self.pick([("[", "]"), ('{"tuple":[', "]}"), ('{"dict":{"a":', "}}")])
        text = json.dumps(forged.structure).replace(
            '"model": ', f'"model": {opening * depth}1{closing * depth}, "other": ', 1
        )
        if self.rng.random() < 0.5:
            forged.write(path, structure=text)
        else:
            forged.write(path, header=opening * depth + "1" + closing * depth)
        return depth, opening

    def kind_huge(self, source, path):
        forged = Forged(source)
        filler = self.pick(["[],", "{},", '"a",', '{"a":[]},', "1,", '"\\ud83d\\ude00",'])
        size = self.pick([10**5, 10**6, 4 * 10**6, 10**7])
        text = '{"schema":1,"model":[' + filler * (size // len(filler)) + "1]}"
        if self.rng.random() < 0.5:
            forged.write(path, structure=text)
        else:
            forged.write(path, header=text)
        return filler, size

    # -------------------------------------------------------------- what a writer could have done

    def kind_structure_field(self, source, path):
        forged = Forged(source)
        parent, key = self.pick(list(places(content(forged))))
        value = self.pick(VALUES)
        if isinstance(parent[key], int | float) and self.rng.random() < 0.3:
            value = self.pick([-parent[key], parent[key] + 1, parent[key] * 1000])
        parent[key] = value
        forged.write(path)
        return key, value

    def kind_structure_key(self, source, path):
        forged = Forged(source)
        parent, key = self.pick([p for p in places(forged.structure) if isinstance(p[0], dict)])
        value = parent.pop(key)
        if self.rng.random() < 0.5:
            parent[f"{key}_"] = value
        forged.write(path)
        return key

    def kind_swapped(self, source, path):
        forged = Forged(source)
        found = list(places(content(forged)))
        (a, i), (b, j) = self.pick(found), self.pick(found)
        other = json.loads(json.dumps([a[i], b[j]]))
        a[i] = other[1]
        if i != j or a is not b:
            b[j] = other[0]
        try:
            forged.write(path)
        except ValueError:  # one inside the other
            forged = Forged(source)
            forged.write(path)
        return i, j

    def kind_tensor(self, source, path):
        forged = Forged(source)
        name = self.pick(list(forged.header))
        array = forged.array(name)
        change = self.pick(["nan", "inf", "huge", "dtype", "shape", "cut", "empty", "order", "one"])
        if change in ("nan", "inf", "huge") and array.size and array.dtype.kind in "fiu":
            value = {"nan": np.nan, "inf": -np.inf, "huge": 1e300}[change]
            if array.dtype.kind != "f":
                value = np.iinfo(array.dtype).max if change == "huge" else -1 % 256
            with np.errstate(all="ignore"):
                array.flat[int(self.rng.integers(array.size))] = value
        elif change == "dtype":
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = array.astype(self.pick(["<f4", "<f2", "<i8", "|u1", "<f8", "|b1"]))
        elif change == "shape":
            array = self.pick(
                [array.reshape(-1), array[None], array.reshape(-1, 1), array.T.copy()]
            )
        elif change == "cut" and array.ndim and len(array):
            array = array[: len(array) // 2].copy()
        elif change == "empty":
            array = array[:0].copy() if array.ndim else array
        elif change == "order" and array.size:
            array = self.rng.permutation(array.reshape(-1)).reshape(array.shape)
        elif change == "one":
            array = array.reshape(-1)[:1].copy()
        forged.put(name, np.ascontiguousarray(array))
        forged.write(path)
        return name, change

    # -------------------------------------------------------------- archives of scikit-learn parts

    def kind_archive(self, source, path):
        forged = Forged(source)
        name = self.pick([n for n in forged.header if forged.data[n][:2] == b"PK"])
        with zipfile.ZipFile(io.BytesIO(forged.data[name])) as archive:
            parts = {part.filename: archive.read(part) for part in archive.infolist()}
        changes = ["json", "json", "json", "bomb", "paths", "twice", "cut"]
        arrays = [part for part in parts if part.endswith(".npy")]
        change = self.pick(changes + ["npy", "npy", "array"] * bool(arrays))
        out, packing = (
            io.BytesIO(),
            zipfile.ZIP_DEFLATED if change == "bomb" else zipfile.ZIP_STORED,
        )
        if change == "json":
            schema = json.loads(parts["schema.json"])
            parent, key = self.pick(list(places(schema)))
            parent[key] = self.pick(
                [*VALUES, "os", "system", "builtins", "eval", "FunctionNode", "Tree"]
            )
            parts["schema.json"] = json.dumps(schema).encode()
        elif change == "npy":
            part = self.pick(arrays)
            raw = bytearray(parts[part])
            raw[int(self.rng.integers(len(raw)))] ^= 1 << int(self.rng.integers(8))
            parts[part] = bytes(raw)
        elif change == "array":
            part = self.pick(arrays)
            array, buffer = np.load(io.BytesIO(parts[part])), io.BytesIO()
            np.save(buffer, array[::-1] if array.ndim else array + 1)
            parts[part] = buffer.getvalue()
        elif change == "bomb":
            parts[self.pick(list(parts))] = b"0" * 10**8
        elif change == "paths":
            parts = {f"../{n}": data for n, data in parts.items()} | {
                "schema.json": parts["schema.json"]
            }
        with zipfile.ZipFile(out, "w", packing) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part, data in parts.items():
                archive.writestr(part, data)
            if change == "twice":
                archive.writestr("schema.json", parts["schema.json"])
        data = out.getvalue()
        forged.put(
            name, np.frombuffer(data[: len(data) // 2] if change == "cut" else data, np.uint8)
        )
        forged.write(path)
        return name, change


def content(forged):
    """What a file holds: a model, or the records of a checkpoint."""
    return forged.structure.get("model", forged.structure.get("records"))


def read(path, fit=None):
    """The model of a file, or that of a `fit` which goes on from it."""
    from skscalablegp import load

    if fit is None:
        return load(path)
    return clone(fit).set_params(checkpoint=path.parent).fit(X, Y)


def outcome(path, expected, fit=None):
    """ "refused", "same", "other" or "failed" with the reason; and what happened."""
    from skscalablegp.files import ModelFileError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = read(path, fit)
        except ModelFileError as error:
            said = str(error)
            return ("refused" if len(said) < 2000 and "\n" not in said else "failed"), said
        except Exception as error:
            return "failed", f"load: {type(error).__name__}: {error}"
        try:
            predicted = np.asarray(model.predict(NEW), dtype=float)
        except Exception as error:
            return "other", f"predict: {type(error).__name__}: {error}"
    if predicted.shape != expected.shape or not np.isfinite(predicted).all():
        return "failed", f"predicts {predicted}"
    return ("same" if np.array_equal(predicted, expected) else "other"), ""


def memory(path, fit=None):
    """The largest memory while a file is read, in MB, as Python and NumPy count it."""
    tracemalloc.start()
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read(path, fit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def run(cases, seed, folder, names=None, log=None):
    """Yield (what was done, outcome, what happened, path, fit) of each case."""
    fuzzer = Fuzzer(folder, seed, names)
    for k in range(cases):
        source, what, path = fuzzer.case()
        if log is not None:
            log.write_text(f"{k} {what}")
        fit, raw = fuzzer.fits.get(source), path.read_bytes()
        found = outcome(path, fuzzer.predicted[source], fit)
        # A fit that has ended has removed its checkpoint.
        path.write_bytes(raw)
        yield what, *found, path, fit
        path.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print cases that are loaded")
    args = parser.parse_args()
    counts, slowest, largest, failed = Counter(), (0.0, ""), (0.0, ""), 0
    with tempfile.TemporaryDirectory() as folder:
        # If a case ends the process, its description is still there.
        log = Path(tempfile.gettempdir()) / "fuzz-files-case"
        begun = None
        for what, found, said, path, fit in run(args.cases, args.seed, Path(folder), log=log):
            seconds = 0.0 if begun is None else time.process_time() - begun
            size = path.stat().st_size / 2**20
            beyond = memory(path, fit) - size
            counts[found] += 1
            slowest, largest = max(slowest, (seconds, what)), max(largest, (beyond, what))
            bad = found == "failed" or seconds > 1 or beyond > 100
            failed += bad
            if bad or (args.show and found == "other"):
                label = "FAILED" if bad else found
                print(f"{label}: {what:.200} {said:.300} {seconds:.2f} s {beyond:.0f} MB")
            begun = time.process_time()
    print(f"{args.cases} cases: {dict(counts)}, {failed} failed")
    print(f"slowest {slowest[0]:.2f} s of processor time ({slowest[1]:.100})")
    print(f"largest {largest[0]:.0f} MB beyond the file's size ({largest[1]:.100})")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
