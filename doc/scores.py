#!/usr/bin/env python3
"""The README's table of scores, from what benchmarks/compare.py and benchmarks/rivals.py measured.

python doc/scores.py    # writes it between the marks in README.rst
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN = ".. scores begin (python doc/scores.py writes them)\n"
END = ".. scores end\n"
DATA_SETS = ("pol", "elevators", "bike", "kin40k", "protein", "keggdirected")
# Heading, file of results, name of the estimator there.
COLUMNS = (
    ("AutoGP-\nRegressor", "compare", "AutoGPRegressor"),
    ("Iterative-\nGPRegressor", "compare", "IterativeGPRegressor"),
    ("SCGDDKL-\nRegressor", "compare", "SCGDDKLRegressor"),
    ("noise model\nover trees", "rivals", "HeteroscedasticTrees"),
    ("noise model\nover a stack", "rivals", "HeteroscedasticStackTails"),
    ("CatBoost with\nuncertainty", "rivals", "CatBoostUncertainty"),
    ("scikit-learn's\nprocess", "compare", "GaussianProcessRegressor"),
    ("GPyTorch's\nSVGP", "compare", "GPyTorchSVGP"),
)

# Processor seconds of a fit. Where one took clearly more, its time stands beside the figure.
LIMIT = 60
TOLERATED = 1.1


def main():
    readme = ROOT / "README.rst"
    before, _, rest = readme.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + BEGIN + "\n" + table() + "\n" + END + after, encoding="utf-8")


def table():
    """Rows are data sets; a dash stands for a cell without a figure."""
    found = {name: measured(name) for name in {file for _, file, _ in COLUMNS}}
    lines = [["data set"], ["", *(heading.split("\n")[1] for heading, _, _ in COLUMNS)]]
    lines[0] += [heading.split("\n")[0] for heading, _, _ in COLUMNS]
    lines[1].insert(1, "")
    lines[0].insert(1, "rows")
    for name in DATA_SETS:
        cells = [found[file].get((name, estimator)) for _, file, estimator in COLUMNS]
        values = [cell["nll"] for cell in cells if cell and not over(cell)]
        rows = max(cell["n_train"] for cell in cells if cell)
        lines.append([name, f"{rows:,}", *(shown(cell, min(values)) for cell in cells)])
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    rule = "  ".join("=" * width for width in widths)
    text = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    return "\n".join([rule, *text[:2], rule, *text[2:], rule]) + "\n"


def shown(cell, best):
    if not cell:
        return "–"
    value = f"{cell['nll']:.2f}"
    if over(cell):
        return f"{value} ({cell['fit_cpu_seconds']:.0f} s)"
    return f"**{value}**" if value == f"{best:.2f}" else value


def over(cell):
    """Whether the fit had more time than the others."""
    return cell["fit_cpu_seconds"] > TOLERATED * LIMIT


def measured(name):
    """The last line of split 0 of each data set and estimator that ended well, all rows."""
    path = ROOT / "benchmarks" / "results" / f"{name}.jsonl"
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines() if text]
    return {
        (line["dataset"], line["estimator"]): line
        for line in lines
        if line.get("status") == "ok" and line.get("split") == 0 and not line.get("n_train_asked")
    }


if __name__ == "__main__":
    main()
