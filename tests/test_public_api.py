"""What ``import skscalablegp`` offers: lazily, and to editors and type checkers alike."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sklearn.utils import all_estimators

import skscalablegp

PACKAGE = Path(skscalablegp.__file__).parent
STUB = PACKAGE / "__init__.pyi"
# Public modules below the package.
PUBLIC = ("kernels", "priors", "likelihoods", "training", "gradients", "solvers", "preconditioners")
PUBLIC += ("truncation", "metrics", "inspection", "files", "export", "datasets")


def test_the_import_alone_is_cheap_and_everything_is_there():
    code = (
        "import sys, skscalablegp\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)\n"
        "assert set(skscalablegp.__all__) | {'metrics', 'inspection'} <= set(dir(skscalablegp))\n"
        "assert skscalablegp.RFFRegressor is skscalablegp.models.fourier.RFFRegressor\n"
        "assert skscalablegp.metrics.nlpd\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_editors_see_the_imports_that_are_made():
    """A stub offers what it imports under its own name; nothing but a version stands beside it."""
    *imports, rest = ast.parse(STUB.read_text()).body
    assert ast.unparse(rest) == "__version__: str"
    offered = {alias.asname: (alias.name, line.module) for line in imports for alias in line.names}
    assert len(offered) == sum(len(line.names) for line in imports)
    for shown, (name, home) in offered.items():
        assert shown == name
        module = __import__(f"skscalablegp.{home or name}", fromlist=[name])
        assert getattr(skscalablegp, name) is (getattr(module, name) if home else module)
    classes = {name for name, (_, home) in offered.items() if home}
    assert classes == set(skscalablegp.__all__) - {"__version__"}
    assert set(offered) <= set(dir(skscalablegp))


def test_the_stub_is_shipped_and_is_the_only_list():
    pyproject = PACKAGE.parent / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("not a checkout of the repository")
    data = tomllib.loads(pyproject.read_text())["tool"]["setuptools"]["package-data"]
    assert STUB.name in data["skscalablegp"]
    _, told, code = (PACKAGE / "__init__.py").read_text().split('"""', 2)
    assert not [name for name in skscalablegp.__all__[:-1] if name in code]
    estimators = [
        n for n in skscalablegp.__all__ if hasattr(getattr(skscalablegp, n), "get_params")
    ]
    assert not [name for name in estimators if f"`{name}`" not in told]


def test_unknown_names():
    with pytest.raises(AttributeError, match="'skscalablegp' has no attribute 'nothing'"):
        skscalablegp.nothing  # noqa: B018


def public_signatures():
    """{name: signature} of public functions, constructors and methods that users call."""
    modules = [skscalablegp, *(importlib.import_module(f"skscalablegp.{m}") for m in PUBLIC)]
    found = {}
    for module in modules:
        for name in set(module.__all__) - {"__version__"}:
            made = getattr(module, name)
            if inspect.isclass(made):
                methods = [k for k in dir(made) if not k.startswith("_")]
                for method in ("__init__", "__call__", *methods):
                    function = getattr(made, method, None)
                    own = str(getattr(function, "__module__", "")).startswith("skscalablegp")
                    if inspect.isroutine(function) and own:
                        found[f"{name}.{method}"] = inspect.signature(function)
            elif inspect.isroutine(made):
                found[name] = inspect.signature(made)
    return found


def test_signatures_show_real_types_or_none():
    """`help` prints them: "Any" for each argument says nothing."""
    signatures = public_signatures()
    assert len(signatures) > 300
    # Parts for authors of kernels and gradients, which mypy checks.
    for_authors = {"root", "ObjectRows.to", "GradientState.__init__"}
    for name in signatures.keys() - for_authors:
        signature = signatures[name]
        types = [p.annotation for p in signature.parameters.values()]
        shown = [str(t) for t in (*types, signature.return_annotation)]
        assert not {"Any", "typing.Any"} & set(shown), name


def messages():
    """[(place, text)] of the package's strings of four words or more that are no docstrings."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        bodies = [node for node in ast.walk(tree) if hasattr(node, "body")]
        firsts = [node.body[0] for node in bodies if isinstance(node.body, list) and node.body]
        documented = {id(node.value) for node in firsts if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            words = node.value.split() if is_text and id(node) not in documented else []
            # Tables of names are no messages.
            if len(words) > 3 and not all(re.fullmatch(r"[A-Z_][\w.]*|\w+_\w*", w) for w in words):
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value))
    return found


def test_messages_name_public_classes_only():
    """A user who reads a name in a message can import it."""
    public = {name for module in PUBLIC for name in modules_names(f"skscalablegp.{module}")}
    public |= set(skscalablegp.__all__) | {name for name, _ in all_estimators()}
    public |= modules_names("sklearn.gaussian_process.kernels") | {"TransformedTargetRegressor"}
    found = messages()
    assert len(found) > 500
    kinds = "Regressor|Classifier|Predictor|Kernel|Encoder|Truncation|Gradient|Display|Transformer"
    for place, text in found:
        assert not re.search(r"\b_[A-Za-z]|\._[a-z]", text), (place, text)
        named = set(re.findall(rf"\b[A-Z][A-Za-z0-9]*(?:{kinds})\b", text))
        assert named <= public, (place, named - public)


def modules_names(name):
    """Names that a public module offers."""
    module = importlib.import_module(name)
    return set(getattr(module, "__all__", vars(module)))
