"""What CONTRIBUTING.rst says, done: an estimator, a solver and a likelihood join a copy of the
package, each as one folder or file and one line.

The toys are those whose contracts are tested elsewhere; here they join the package itself.
"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skscalablegp

TESTS = Path(__file__).resolve().parent.parent

USES = """
import numpy as np
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skscalablegp as sk
from skscalablegp.likelihoods import Counts, __all__ as likelihoods
from skscalablegp.solvers import Richardson, __all__ as solvers

assert sk.__file__.startswith({root!r})
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (60, 2))
y = np.sin(X).sum(1) + 0.1 * rng.standard_normal(60)

assert "SubsetGPRegressor" in sk.__all__ and "SubsetGPRegressor" in dir(sk)
assert sk.SubsetGPRegressor(subset_size=40, random_state=0).fit(X, y).score(X, y) > 0.9

assert "Richardson" in solvers
settings = dict(kernel=RBF(1.0) + WhiteKernel(1.0), optimizer=None, posterior="solve")
for solver in ("richardson", Richardson()):
    ours = sk.IterativeGPRegressor(solver=solver, solver_tol=1e-6, **settings).fit(X, y)
    exact = sk.IterativeGPRegressor(solver="cholesky", **settings).fit(X, y)
    assert abs(ours.predict(X) - exact.predict(X)).max() < 1e-4

assert "Counts" in likelihoods
counts = rng.poisson(np.exp(0.5 * y))
for model in (sk.SVGPRegressor, sk.QSGPRegressor):
    named, given = (
        model(likelihood=value, max_iter=5, random_state=0).fit(X, counts).predict(X)
        for value in ("counts", Counts())
    )
    assert (named == given).all() and (named > 0).all()
"""


def source(file, *classes):
    """Some classes of a test file, with the imports that they need."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    toys = [node for node in tree.body if getattr(node, "name", None) in classes]
    used = {node.id for toy in toys for node in ast.walk(toy) if isinstance(node, ast.Name)}
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        node.names = [name for name in node.names if (name.asname or name.name) in used]
    parts = [*(node for node in imports if node.names), *toys]
    return "\n".join(map(ast.unparse, parts)) + "\n"


def insert(path, line):
    """Add an import to a list of public names."""
    before, rest = path.read_text(encoding="utf-8").split("\n\n__", 1)
    path.write_text(f"{before}\n{line}\n\n__{rest}", encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The folder that holds a copy of the package with the toys."""
    root = tmp_path_factory.mktemp("copy")
    package = root / "skscalablegp"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(skscalablegp.__file__).parent, package, ignore=ignore)

    # An estimator: a folder, and a line in the list of public names.
    folder = package / "models" / "subset"
    folder.mkdir()
    (folder / "__init__.py").write_text("from ._subset import SubsetGPRegressor\n")
    estimator = source("contracts/test_new_estimator.py", "SubsetGPRegressor")
    (folder / "_subset.py").write_text(estimator, encoding="utf-8")
    line = "from .models.subset import SubsetGPRegressor as SubsetGPRegressor"
    insert(package / "__init__.pyi", line)

    # A solver: a file, and a line in the public module.
    solver = source("linalg/solvers/test_a_new_solver.py", "RichardsonState", "Richardson")
    solver = solver.replace("Richardson(Solver)", 'Richardson(Solver, name="richardson")')
    (package / "linalg" / "solvers" / "_richardson.py").write_text(solver, encoding="utf-8")
    line = "from .linalg.solvers._richardson import Richardson as Richardson"
    insert(package / "solvers.py", line)

    # A likelihood: the same.
    likelihood = source("core/test_likelihoods.py", "Counts")
    likelihood = likelihood.replace("Counts(Likelihood)", 'Counts(Likelihood, name="counts")')
    likelihood = likelihood.replace("skscalablegp.likelihoods", "skscalablegp.core.likelihoods")
    (package / "core" / "likelihoods" / "_counts.py").write_text(likelihood, encoding="utf-8")
    insert(package / "likelihoods.py", "from .core.likelihoods._counts import Counts as Counts")
    return root


@pytest.mark.slow
def test_each_is_a_file_and_a_line(copy):
    code = USES.format(root=str(copy))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=copy, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
