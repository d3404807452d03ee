"""Writes the recorded values of this folder again, and prints what has changed.

    python tests/golden/write.py                    # all fits: about a minute
    python tests/golden/write.py -k "nngp poe-150"  # those whose names contain one of the words
    python tests/golden/write.py --measure          # their tolerances as well: six times as long

A line whose values hold to its tolerance stays as it is, so that the lines that differ in a commit
are the fits that it changes. `--measure` repeats each fit with other instructions of the processor,
with two threads and with numbers that are off by 1e-14 of themselves. The tolerance of a field is
five to fifty times its largest movement, and at least 1e-10 (1e-5 in single precision).
"""

import argparse
import functools
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Beside the contracts, of which the rows come, with the package of this checkout, and before
# anything reads the threads.
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

from golden_values import (  # noqa: E402
    BY_NAME,
    FILES,
    TOLERANCES,
    VERSIONS,
    changes,
    movement,
    read,
    record,
    to_line,
)

# Instructions as on other processors, in all libraries, and other numbers of threads.
SETTINGS = {
    "SSE": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "2 threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
}
# Relative sizes of perturbations of all numbers; single precision sees them a hundred million times
# as large. The second is shown only, because it is far above rounding.
NEAR = {"1e-14": 1e-14, "1e-12": 1e-12}
SHOWN_ONLY, OF_SINGLE = ("1e-12",), 1e8
# Movements that leave too little of a record; printed with the field's name.
UNSTABLE = 1e-5


def elsewhere(names, setting):
    """The records of these fits by another process, under a setting or with perturbed numbers."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        command = [sys.executable, __file__, "--into", file.name, "--setting", setting]
        there = os.environ | SETTINGS.get(setting, {})
        subprocess.run(command, env=there, input="\n".join(names), text=True, check=True)
        return pickle.loads(Path(file.name).read_bytes())


def into(path, setting):
    """What `elsewhere` starts."""
    found = {}
    for name in sys.stdin.read().split("\n"):
        fit = BY_NAME[name]
        size = NEAR.get(setting, 0.0) * (OF_SINGLE if fit.single else 1)
        found[name] = record(fit, functools.partial(near, size=size))
    Path(path).write_bytes(pickle.dumps(found))


def near(values, size):
    """Equal numbers stay equal, so that repeated rows do; integers have no last digits."""
    values = np.asarray(values)
    if not size or values.dtype.kind != "f":
        return values
    return values * (1 + size * np.sin(1e6 * values))


def measured(new):
    """The tolerances of each record, and a printed table of movements."""
    columns = [*SETTINGS, *NEAR]
    print(f"{'largest movement':32s}", *(f"{name:>9s}" for name in columns), flush=True)
    moved = {name: {} for name in new}
    for setting in columns:
        for name, values in elsewhere(list(new), setting).items():
            moved[name][setting] = movement(values, new[name])
    tolerances = {}
    for name, found in moved.items():
        row = [max(fields.values(), default=0.0) for fields in found.values()]
        fields = {}
        for setting in columns:
            for field, size in found[setting].items():
                if setting not in SHOWN_ONLY and not (setting in NEAR and BY_NAME[name].keyed):
                    fields[field] = max(size, fields.get(field, 0.0))
        tolerances[name] = {"all": TOLERANCES[BY_NAME[name].single]}
        for field, size in sorted(fields.items()):
            if size * 5 > tolerances[name]["all"] and size < math.inf:
                tolerances[name][field] = float(f"1e{math.ceil(math.log10(5 * size))}")
        print(f"{name:32s}", *(f"{size:9.1e}" for size in row), end=" ")
        print(*(f for f, size in fields.items() if size > UNSTABLE), sep=", ", flush=True)
    return tolerances


def versions():
    return {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "torch")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-k", default="", metavar="WORDS", help="fits with one of these words")
    parser.add_argument("--measure", action="store_true", help="measure tolerances as well")
    parser.add_argument("--into", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.into:
        return into(asked.into, asked.setting)
    words = asked.k.split()
    chosen = [name for name in BY_NAME if not words or any(word in name for word in words)]
    new = {}
    for name in chosen:
        before = time.process_time()
        new[name] = record(BY_NAME[name])
        if (seconds := time.process_time() - before) > 3:
            print(f"{name} took {seconds:.1f} s of processor time", flush=True)
    tolerances = measured(new) if asked.measure else {}
    changed = 0
    for path, names in FILES.items():
        old = read(path)
        lines = (
            {} if not path.exists() else dict(zip(old, path.read_text().splitlines(), strict=True))
        )
        for name in [name for name in names if name in new]:
            before = old.get(name, {})
            least = before.get("tolerance", {"all": TOLERANCES[BY_NAME[name].single]})
            tolerance = tolerances.get(name, least)
            far = changes(new[name], before, tolerance)
            if far or tolerance != before.get("tolerance"):
                lines[name] = to_line(name, new[name], tolerance)
            if far:
                changed += 1
                shown = [f"{f} {size:.1e}" if size < math.inf else f for f, size in far.items()]
                print(f"{name}: {', '.join(shown) if before else 'new'}")
        path.write_text("".join(f"{lines[name]}\n" for name in names if name in lines))
    VERSIONS.write_text(json.dumps(versions(), indent=1) + "\n")
    print(f"{changed} of {len(chosen)} fits changed")


if __name__ == "__main__":
    main()
