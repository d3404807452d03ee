"""What the package defines, by its name wherever it is, so that a move changes no test.

A name is that of a constant, a function or a method: ``_CHUNK``, ``train``, ``FitRun.finish``.
Where several modules define it, parts of the module's name come first: ``iterative._HELD_SHARE``.
What none defines is what one of them imports from another package: ``experts.KMeans``.
The fixtures `thresholds` and `stand_in` of all tests replace what is named so.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import skscalablegp

ROOT = Path(skscalablegp.__file__).parent


@cache
def sources():
    """The code of every module of the package."""
    files = {path.relative_to(ROOT.parent): path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    code = {".".join(file.with_suffix("").parts): text for file, text in sorted(files.items())}
    return {name.removesuffix(".__init__"): text for name, text in code.items()}


def within(module, parts):
    """Whether these parts occur in a module's name, in this order."""
    rest = iter(module.split("."))
    return all(part in rest for part in parts)


@cache
def binds(module, name, *ways):
    """Whether a module binds a name in one of these ways: class, def, =, import, outside."""
    imports = rf"import ([^(\n]*|\([^)]*)\b{name}\b"
    patterns = {
        "class": rf"class {name}\b",
        "def": rf"def {name}\b",
        "=": rf"(\w+, )*{name}(, \w+)*(: [^=\n]+)? = ",
        "import": rf"from \S+ {imports}",
        "outside": rf"from (?!skscalablegp)\w\S* {imports}",
    }
    code = sources()[module]
    return name in code and any(re.search(f"^{patterns[way]}", code, re.MULTILINE) for way in ways)


DEFINED = "class", "def", "="


def home(name):
    """The module that defines a name, and the name without what says the module.

    Raises
    ------
    LookupError
        If no module defines it, or several do.
    """
    parts = name.split(".")
    found = []
    for ways in (DEFINED, ("outside",)):
        for i, part in enumerate(parts):
            own = ways if i == len(parts) - 1 else ("class",)
            modules = [module for module in sources() if within(module, parts[:i])]
            found += [(module, parts[i:]) for module in modules if binds(module, part, *own)]
        if found:
            break
    if len(found) != 1:
        modules = ", ".join(module for module, _ in found)
        raise LookupError(f"{len(found)} modules define {name}: {modules}")
    return found[0]


def places(name):
    """The class, or else the modules, that have what is named, and the attribute that it is.

    Modules have it that import it.
    """
    module, (*owners, last) = home(name)
    owner = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    found = [(owner, last)]
    if owners:
        return found
    for other in sources():
        if binds(other, last, "import") and not binds(other, last, *DEFINED):
            try:
                importer = import_module(other)
            except ImportError:  # an optional package is not there
                continue
            if vars(importer).get(last) is getattr(owner, last):
                found.append((importer, last))
    return found


def module(name):
    """The module that defines a name."""
    return import_module(home(name)[0])


def thresholds(patch, *modules, **numbers):
    """Set numbers at which models change what they do, mostly numbers of rows.

    Each is a constant of the package; `modules` are parts of the names of the modules that have it.
    """
    for name, number in numbers.items():
        for owner, constant in places(".".join([*modules, name])):
            if isinstance(getattr(owner, constant), dict):
                patch.setitem(getattr(owner, constant), "cpu", number)
            else:
                patch.setattr(owner, constant, number)


def stand_in(patch, name, instead, at=None):
    """Put something in the place of what the package names, and return what was there.

    With `at`, this is done only in modules whose names have this part.
    """
    found = places(name)
    original = getattr(*found[0])
    for owner, attribute in found:
        if at is None or within(owner.__name__, [at]):
            patch.setattr(owner, attribute, instead)
    return original
