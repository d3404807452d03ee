"""Lists of mutants do not rot: each changes code that is there, and its tests are there."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("mutants_run", HERE / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


def test_mutants_change_what_they_name():
    # Ends with the names of those whose definition, or the code in it, is gone.
    items = run.items_of([])
    assert len({(item.family, item.mutant.name) for item in items}) == len(items)
    for item in items:
        compile(item.code, f"{item.mutant.name}: {item.file}", "exec")
        assert (run.ROOT / item.mutant.tests.split()[0].split("::")[0]).exists(), item.mutant


# Two modules; what each test changes is in one of them.
ONE = '''
SCALE, SHIFT = 2.0, 1.0


def moved(x):
    """Double it."""
    if x > 0:  # Always.
        return SCALE * x
    return -x


class Line:
    def at(self, x):
        return self.a + (
            self.b * x
        )
'''
OTHER = """
def moved():
    return 0


def same(x):
    return x + 1
"""
MUTANTS = [
    ("twice", "moved", "return SCALE*x", "return x"),
    ("sign", "Line.at", "self.a + self.b * x", "self.a - self.b * x"),
    ("constant", "SHIFT", "1.0", "0.0"),
    ("body", "moved", "if x > 0: ...", "if True: ..."),
]


def small_package(folder, **modules):
    shutil.rmtree(folder / "p", ignore_errors=True)
    for name, text in modules.items():
        path = folder / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return run.Package(folder / "p")


def mutant(name, target, old, new):
    return run.Mutant(name, target, old, new, "tests/mutants/test_lists.py")


@pytest.mark.parametrize("line", MUTANTS, ids=lambda line: line[0])
def test_definitions_keep_their_mutants_where_they_move(line, tmp_path):
    file, before = mutant(*line).mutated(small_package(tmp_path, one=ONE, other=OTHER))
    assert file == "one.py" and before != ONE
    moved = small_package(tmp_path, one="", elsewhere="import math\n" + ONE, other=OTHER)
    file, after = mutant(*line).mutated(moved)
    assert file == "elsewhere.py" and after == "import math\n" + before


def test_the_changed_code_does_what_the_mutant_says(tmp_path):
    package = small_package(tmp_path, one=ONE, other=OTHER)
    found = {}
    for line in MUTANTS:
        space = {}
        exec(mutant(*line).mutated(package)[1], space)
        point = space["Line"]()
        point.a, point.b = 1.0, 2.0
        found[line[0]] = [space["moved"](3.0), space["moved"](-3.0), point.at(3.0), space["SHIFT"]]
    right = [6.0, 3.0, 7.0, 1.0]
    assert found == {
        "twice": [3.0, *right[1:]],
        "sign": [*right[:2], -5.0, right[3]],
        "constant": [*right[:3], 0.0],
        "body": [6.0, -6.0, *right[2:]],
    }


@pytest.mark.parametrize(
    "target, old, says",
    [
        ("gone", "x", "nothing is named gone"),
        ("Line.gone", "x", "nothing is named Line.gone"),
        ("moved", "x / 2", r"occurs 0 times in moved \(one, other, third\)"),
        ("moved", "x", r"occurs 3 times in moved \(one"),
        ("same", "x + 1", r"occurs 2 times in same \(other, third\)"),
        ("third.gone", "x", "nothing is named third.gone"),
        ("same", "x +", "invalid syntax"),
        ("same", "(y)", "are the same code"),
    ],
)
def test_a_mutant_without_its_code_fails_with_its_name(target, old, says, tmp_path):
    package = small_package(tmp_path, one=ONE, other=OTHER, third=OTHER)
    with pytest.raises(ValueError, match=f"my mutant: .*{says}"):
        mutant("my mutant", target, old, "y").mutated(package)
    assert mutant("m", "third.same", "x + 1", "x").mutated(package)[0] == "third.py"


def test_a_run_stops_at_a_mutant_without_its_code(monkeypatch, tmp_path):
    (tmp_path / "skscalablegp").mkdir()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    gone = mutant("the lost one", "no_such_function", "x", "y")
    monkeypatch.setattr(run, "families", lambda: {"some": [gone]})
    with pytest.raises(SystemExit, match="some: the lost one: nothing is named no_such_function"):
        run.items_of([])


TESTS = """
import pytest

from skscalablegp import moved


def test_positive():
    assert moved(1) == 2


def test_large():
    assert moved(2) == 4


@pytest.mark.slow
def test_negative():
    assert moved(-1) == 1
"""


@pytest.mark.slow
def test_a_run_records_all_killers_and_goes_on_where_it_ended(monkeypatch, tmp_path, capsys):
    for name, text in {"skscalablegp/__init__.py": ONE, "tests/test_it.py": TESTS}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    changes = [
        ("two", "SCALE * x", "x + SHIFT / 2"),
        ("none", "x > 0", "x >= 0"),
        ("one", "-x", "x"),
    ]
    lines = [(name, "moved", old, new, "tests/test_it.py") for name, old, new in changes]
    files = [tmp_path / "earlier", tmp_path / "killers"]
    at = "tests/test_it.py::test_"
    first = {"family": "some", "mutant": "none", "killed": False, "killers": [], "slow": []}
    killed = first | {"killed": True, "killers": [f"{at}slow"], "slow": [f"{at}slow"]}
    files[0].write_text("\n".join(map(json.dumps, [killed, killed | {"mutant": "gone"}])) + "\n")
    # The run was interrupted after its first mutant.
    files[1].write_text(json.dumps(first) + "\n")
    monkeypatch.setattr(run, "families", lambda: {"some": [run.Mutant(*line) for line in lines]})
    arguments = ["run.py", "--all-killers", str(files[1]), "--since", str(files[0])]
    monkeypatch.setattr("sys.argv", arguments)
    assert run.main() == 1
    before, two, one = map(json.loads, files[1].read_text().splitlines())
    assert before == first
    assert two["killers"] == [f"{at}positive", f"{at}large"] and not two["slow"]
    assert one["killers"] == one["slow"] == [f"{at}negative"] and one["killed"]
    told = capsys.readouterr().out
    assert f"no quick test kills:\n{at}negative\nSURVIVES  some: none\n" in told
    assert "KILLED BEFORE  some: gone\nKILLED BEFORE  some: none\n" in told


def test_slow_tests_that_suffice():
    killers = {"a": "st", "b": "tu", "c": "uv", "d": "sq", "e": "", "f": "s"}
    lines = {
        ("some", name): {"killers": [*found], "slow": [each for each in found if each != "q"]}
        for name, found in killers.items()
    }
    # Only s kills f, and u kills what is left; q is quick and kills d.
    assert run.needed_slow(lines) == ["s", "u"]
