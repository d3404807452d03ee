"""Tests of the whole repository: layers, names, version, configuration, benchmarks."""

import ast
import configparser
import functools
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import skscalablegp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "skscalablegp"

# A layer may import those before it; models may not import one another (below).
LAYERS = [
    "storage",
    "workers",
    "kernels",
    "features",
    "linalg",
    "core",
    "models",
    "meta",
    "files",
    "export",
    "dask",
]
# What users import by name; the layers never do.
PUBLIC = ["solvers", "preconditioners", "truncation", "gradients", "likelihoods", "training"]
PUBLIC += ["priors", "ranks"]
# Beside the layers: they import no layer, and no layer imports them.
LEAVES = ["metrics", "datasets", "inspection"]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout of the repository"
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported_modules(path):
    """Every module of the package that a file imports, also inside functions."""
    return list(imports_of(path))


def imports_of(path):
    name = module_name(path)
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            # `from package import folder` imports the folder as well.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part_of(module):
    """The folder or top-level module right below the package, or None."""
    parts = module.split(".")
    return parts[1] if parts[0] == "skscalablegp" and len(parts) > 1 else None


SOURCES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def edges():
    """Part of the package, part that it imports, importing module."""
    return sorted(
        {
            (part_of(module_name(path)), part_of(imported), module_name(path))
            for path in SOURCES
            for imported in imported_modules(path)
            if part_of(imported) is not None and part_of(module_name(path)) is not None
        }
    )


def test_import_graph_is_read_at_all():
    assert ("linalg", "kernels") in {edge[:2] for edge in edges()}


def test_every_folder_has_a_place_in_the_order():
    found = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    found |= {p.stem for p in PACKAGE.glob("*.py") if not p.name.startswith("_")}
    assert found <= {*LAYERS, *PUBLIC, *LEAVES}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_downward(layer):
    upward = [
        (source, target)
        for part, target, source in edges()
        if part == layer and target in LAYERS and LAYERS.index(target) > LAYERS.index(layer)
    ]
    assert not upward


def test_top_level_private_modules_import_no_layer():
    assert not [e for e in edges() if e[0].startswith("_") and e[1] in {*LAYERS, *LEAVES}]


def test_leaves_and_layers_do_not_meet():
    assert not [e for e in edges() if e[0] in LEAVES and e[1] in LAYERS]
    assert not [e for e in edges() if e[0] in LAYERS and e[1] in LEAVES]


def test_models_do_not_import_one_another():
    between = []
    for path in SOURCES:
        own = module_name(path).split(".")
        for imported in imported_modules(path):
            parts = imported.split(".")
            if own[1:2] == ["models"] == parts[1:2] and len(parts) > 2 and len(own) > 2:
                if parts[2] != own[2]:
                    between.append((".".join(own), imported))
    assert not between


def test_layers_do_not_import_the_public_modules():
    assert not [e for e in edges() if e[0] in {*LAYERS, *LEAVES} and e[1] in PUBLIC]


def test_other_folders_are_entered_by_the_front_door():
    """From outside a folder only its __init__ is imported, never a private module of it.

    Only a public module imports classes from the files in which they are, one line each.
    """
    inner = []
    for path in SOURCES:
        if part_of(module_name(path)) in PUBLIC:
            continue
        folder = module_name(path if path.name == "__init__.py" else path.parent / "__init__.py")
        for imported in imported_modules(path):
            parts = imported.split(".")
            if parts[0] != "skscalablegp":
                continue
            for k in range(2, len(parts)):
                home = ".".join(parts[:k])
                module = PACKAGE.joinpath(*parts[1:k], parts[k] + ".py")
                if parts[k].startswith("_") and module.exists() and home != folder:
                    inner.append((module_name(path), imported))
    assert not inner


@pytest.mark.parametrize(
    "pattern, place",
    [
        (r"except[^\n]*KeyboardInterrupt", "core/training/_budget.py"),
        (r"^(import time|from time )", "_clock.py"),
    ],
    ids=["interrupts", "clock"],
)
def test_one_place_handles_interrupts_and_one_reads_the_clock(pattern, place):
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {place}


def test_shares_of_time_stand_in_one_table():
    """`Budget.share` and the like take a name in `SHARES`, all that is left, or a computation."""

    def is_own(node):
        number = isinstance(node, ast.Constant) and isinstance(node.value, float)
        constant = isinstance(node, ast.Name) and node.id.isupper()
        return constant or (number and node.value not in (0.0, 1.0))

    calls = [
        (path, node)
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
        if node.func.attr in ("share", "at_least", "reserve") and path.name != "_budget.py"
    ]
    own = [
        f"{module_name(path)}:{node.lineno}"
        for path, node in calls
        if any(map(is_own, ast.walk(node.args[0])))
    ]
    assert len(calls) > 15 and not own


def test_modules_inside_folders_are_private():
    public = [
        str(p.relative_to(PACKAGE))
        for p in SOURCES
        if p.parent != PACKAGE and not p.name.startswith("_")
    ]
    assert not public


@pytest.mark.slow
def test_what_a_folder_offers_is_used():
    """Names that an __init__ imports from its modules are imported from it, if only by a test."""
    elsewhere = [
        p for folder in ("tests", "benchmarks", "examples") for p in ROOT.glob(f"{folder}/**/*.py")
    ]
    stub = PACKAGE / "__init__.pyi"
    used = {name for path in [*SOURCES, stub, *elsewhere] for name in imported_modules(path)}
    offered = {
        f"{module_name(path)}.{alias.name}"
        for path in SOURCES
        if path.name == "__init__.py" and module_name(path) not in public_modules()
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert offered and not offered - used


def public_modules():
    """Those that users enter; the other folders are for the package itself."""
    inside = {"storage", "workers", "features", "linalg", "core", "models"}
    names = [m.name for m in pkgutil.iter_modules([str(PACKAGE)]) if not m.name.startswith("_")]
    names = sorted(set(names) - inside)
    return ["skscalablegp", *(f"skscalablegp.{name}" for name in names)]


@pytest.mark.parametrize("name", public_modules())
def test_public_names_exist_and_are_listed_once(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [entry for entry in module.__all__ if not hasattr(module, entry)]
    assert not missing
    undocumented = [
        entry
        for entry in module.__all__
        if callable(getattr(module, entry)) and not getattr(module, entry).__doc__
    ]
    assert not undocumented


def test_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and "version" in project["dynamic"]
    assert version("skscalablegp") == skscalablegp.__version__
    released = skscalablegp.__version__.partition(".dev")[0]
    newest = re.search(r"^(\d+\.\d+\S*)", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert newest[1] == released
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited[1] == released


def test_setup_cfg_holds_only_what_pyproject_cannot():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    moved = {"metadata", "options", "tool:pytest", "coverage:run", "mypy", *pyproject["tool"]}
    assert setup.sections()
    assert not [s for s in setup.sections() if s in moved or s.startswith("options.")]


def test_constraints_pin_versions_that_the_ranges_allow():
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {pin.name.lower().replace("_", "-"): next(iter(pin.specifier)) for pin in pins}
    assert all(spec.operator == "==" for spec in pinned.values())
    assert str(pinned["torch"]) == "==2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["examples"], *extras["test"]]:
        needed = Requirement(text)
        assert needed.specifier.contains(pinned[needed.name].version), text


def text_files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_path_of_one_machine():
    home = re.compile(r"(?<![\w.<:/])/(?:home|root|Users|work|tmp|opt)/\w")
    found = []
    for path in text_files():
        if path == Path(__file__).resolve() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [(str(path.relative_to(ROOT)), hit[0]) for hit in home.finditer(text)]
    assert not found


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_address_is_that_of_pyproject():
    address = script(ROOT / "doc" / "address.py").source()
    shown = re.compile(r"git clone (\S+)|(https?://[\w./-]*example\.org[\w./-]*)")
    found = {
        (str(path.relative_to(ROOT)), hit[1] or hit[2])
        for path in text_files()
        if path.suffix in (".rst", ".toml", ".yml", ".cff") and path.is_file()
        for hit in shown.finditer(path.read_text("utf-8"))
    }
    assert {"README.rst", "doc/get_started/install.rst"} <= {name for name, _ in found}
    assert {url for _, url in found} == {address}, found


@pytest.mark.parametrize("address", ["https://host.invalid/me/it", "https://git.example.org/it"])
def test_release_makes_links_absolute(address, tmp_path):
    release = script(ROOT / "doc" / "address.py")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    project = project.replace(release.source(), address)
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    readme = (ROOT / "README.rst").read_text("utf-8")
    (tmp_path / "README.rst").write_text(readme, encoding="utf-8")
    if "example.org" in address:
        with pytest.raises(SystemExit, match="placeholder"):
            release.main("v1.0", tmp_path)
        return
    release.main("v1.0", tmp_path)
    text = (tmp_path / "README.rst").read_text("utf-8")
    assert f"git clone {address}\n" in text
    assert f".. image:: {address}/raw/v1.0/doc/_static/intervals.png\n" in text
    links = re.findall(r"<([^>`]+)>`__", text)
    assert len(links) > 8 and all(link.startswith("https://") for link in links)
    assert len(links) == len(re.findall(r">`__", readme))
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert urls["Source"] == address and urls["Issues"] == f"{address}/issues"
    assert urls["Changelog"] == f"{address}/blob/v1.0/CHANGELOG.rst"


def test_typing_marker_is_shipped():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert (PACKAGE / "py.typed").exists()
    assert "py.typed" in data["package-data"]["skscalablegp"]


def run_benchmark(*arguments, folder):
    environment = {**os.environ, "SKSCALABLEGP_DATA": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "uci.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_what_scripts_import_from_the_package_exists():
    missing = []
    scripts = ("benchmarks/**/*.py", "examples/*.py", "doc/*.py")
    for path in [path for pattern in scripts for path in sorted(ROOT.glob(pattern))]:
        for node in ast.walk(parsed(path)):
            of = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and of.partition(".")[0] == "skscalablegp":
                module = importlib.import_module(of)
                names = [name.name for name in node.names if not hasattr(module, name.name)]
                missing += [f"{path.name}: {of}.{name}" for name in names]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, absent",
    [
        (["--estimator", "BayesianRidge", "--set", "max_iter=7"], set()),
        (["--estimator", "LinearRegression"], {"nll", "crps", "coverage95"}),
        (["--estimator", "GaussianProcessClassifier"], {"rmse", "crps", "coverage95"}),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_benchmark_prints_one_line_of_json(data_folder, arguments, absent):
    done = run_benchmark(
        "--dataset", "yacht", "--n-train", "100", "--threads", "1", *arguments, folder=data_folder
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    for key in ("rmse", "nll", "crps", "coverage95"):
        assert (report[key] is None) == (key in absent)
    for key in ("fit_seconds", "predict_seconds", "peak_rss_mb", "versions", "n_train"):
        assert report[key]
    assert {"epochs", "n_iter", "device", "dtype"} <= set(report)
    assert report["n_train"] == 100
    assert str(ROOT) not in line


@pytest.mark.slow
def test_benchmark_names_what_it_knows(data_folder):
    done = run_benchmark("--dataset", "yacht", "--estimator", "Nothing", folder=data_folder)
    assert done.returncode != 0
    assert "IterativeGPRegressor" in done.stderr


def lines_of_code(path):
    """Lines that are neither empty, nor comments, nor parts of docstrings."""
    strings = set()
    for node in ast.walk(parsed(path)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(getattr(body[0].value, "value", None), str):
                strings.update(range(body[0].lineno, body[0].end_lineno + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and k not in strings
        for k, line in lines
    )


def test_files_can_be_read_in_one_go():
    sizes = {module_name(path): lines_of_code(path) for path in SOURCES}
    assert {name: size for name, size in sizes.items() if size > 400} == {}


def test_exceptions_from_the_limits_have_reasons():
    """A function that is too complex or has too many arguments says why, in the same line."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"C901", "PLR0913"} <= set(limits["select"])
    assert limits["pylint"]["max-args"] <= 8 and limits["mccabe"]["max-complexity"] <= 10
    exceptions = [
        (path.name, line)
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"# noqa: .*(C901|PLR0913)", line)
    ]
    assert exceptions
    assert not [entry for entry in exceptions if not re.search(r"\([a-z][a-z ]+\)$", entry[1])]


# What a rearrangement could break though no behaviour changes: statements of tests that import
# what is private, replaced attributes, and what tests replace by name, which may move but not be
# renamed. Tests of a module's own mathematics need some. Lower these limits as the numbers fall.
PRIVATE_IMPORTS, PATCHED, NAMED = 101, 95, 202


def is_private_import(node):
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("skscalablegp"):
        return False
    names = [*node.module.split("."), *(alias.name for alias in node.names)]
    return any(name.startswith("_") for name in names)


def is_patch(node):
    """Whether pytest's monkeypatch replaces something."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("setattr", "setitem", "delattr")


def is_named(node):
    """Whether something of the package is replaced by its name: see ``tests/named.py``."""
    if not isinstance(node, ast.Call):
        return False
    called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
    return called in ("stand_in", "thresholds") and bool(node.args or node.keywords)


def test_few_tests_enter_the_package_by_the_back_door():
    """``pytest -rP -k back_door`` prints the numbers."""
    nodes = {path: list(ast.walk(parsed(path))) for path in (ROOT / "tests").rglob("*.py")}
    for counted, most, what in (
        (is_private_import, PRIVATE_IMPORTS, "imports of what is private"),
        (is_patch, PATCHED, "replaced attributes"),
        (is_named, NAMED, "names that are replaced"),
    ):
        found = {path: sum(map(counted, own)) for path, own in nodes.items()}
        total = sum(found.values())
        print(f"{total} {what} in {sum(map(bool, found.values()))} files")
        assert total <= most, what


def test_test_files_have_different_names():
    # Folders of tests are no packages: of two files with one name only one can be collected.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
