"""Changes of named code: where a definition is, and its syntax tree with a part of it replaced."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


def named(holder: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST, ast.stmt]]:
    """A module's functions, classes, methods and variables: qualified name, holder and code."""
    for field in "body", "orelse", "finalbody":
        for node in getattr(holder, field, []):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name, holder, node
                if isinstance(node, ast.ClassDef):
                    yield from named(node, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for each in (part for target in targets for part in ast.walk(target)):
                    if isinstance(each, ast.Name):
                        yield prefix + each.id, holder, node
            else:
                yield from named(node, prefix)


def same(one: object, other: object, rest: list[list[ast.stmt]] | None = None) -> bool:
    """Whether two pieces of syntax say the same, whether their names are read or written.

    A body of the second that is ``...`` is the same as any body of the first, which `rest` takes.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        if _is_rest(other) and one:
            (rest if rest is not None else []).append(one)
            return True
        return len(one) == len(other) and all(
            same(*pair, rest) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, ast.AST):
        fields = (field for field in one._fields if field not in ("ctx", "kind"))
        return all(same(getattr(one, each), getattr(other, each), rest) for each in fields)
    return one == other


def parsed(old: str, new: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Two expressions, or else statements.

    Raises
    ------
    SyntaxError
        If one of them is neither.
    """
    both = [ast.parse(textwrap.dedent(text)).body for text in (old, new)]
    if all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in both):
        both = [[body[0].value] for body in both]
    return both[0], both[1]


class Package:
    """The syntax trees of a package.

    Parameters
    ----------
    root : Path
        Its folder.
    """

    def __init__(self, root: Path):
        self._trees = {}
        self._defined = defaultdict(lambda: defaultdict(list))
        for path in sorted(root.rglob("*.py")):
            file = path.relative_to(root).as_posix()
            self._trees[file] = ast.parse(path.read_text(encoding="utf-8"))
            for name, *place in named(self._trees[file]):
                self._defined[name][file].append(place)

    def files(self, target: str) -> dict[str, list[list[ast.AST]]]:
        """The files that define a qualified name, with holder and code of each definition.

        Raises
        ------
        LookupError
            If no module defines the name.
        """
        parts = target.split(".")
        found = {
            file: definitions
            for i in range(len(parts))
            for file, definitions in self._defined.get(".".join(parts[i:]), {}).items()
            if f".{_dotted(file)}".endswith("".join(f".{part}" for part in parts[:i]))
        }
        if not found:
            raise LookupError(f"nothing is named {target}")
        return found

    def changed(self, target: str, old: str, new: str) -> tuple[str, str]:
        """A file, and its code with a part of one definition replaced.

        Raises
        ------
        LookupError
            If nothing has the name, or `old` is not exactly once in what has it.
        SyntaxError
            If `old` or `new` is neither an expression nor statements.
        """
        before, after = parsed(old, new)
        if same(before, after):
            raise LookupError(f"{old!r} and {new!r} are the same code")
        places = [
            (file, *place)
            for file, definitions in self.files(target).items()
            for place in _places(definitions, before)
        ]
        if len(places) != 1:
            files = [file for file, *_ in places] or self.files(target)
            found = ", ".join(_dotted(file) for file in files)
            raise LookupError(f"{old!r} occurs {len(places)} times in {target} ({found})")
        file, holder, field, at = places[0]
        kept = getattr(holder, field)
        bodies: list[list[ast.stmt]] = []
        same([kept] if at is None else kept[at], before, bodies)
        _fill(after, bodies)
        now = after[0] if at is None else [*kept[: at.start], *after, *kept[at.stop :]]
        setattr(holder, field, now)
        try:
            return file, ast.unparse(self._trees[file]) + "\n"
        finally:
            setattr(holder, field, kept)


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_rest(body: object) -> bool:
    return isinstance(body, list) and [*map(_written, body)] == ["..."]


def _written(node: object) -> str:
    return ast.unparse(node) if isinstance(node, ast.Expr) else ""


def _fill(nodes: list[ast.AST], bodies: list[list[ast.stmt]]) -> None:
    """Put bodies where ``...`` stands for them."""
    for node in (each for top in nodes for each in ast.walk(top)):
        for field, value in ast.iter_fields(node):
            if _is_rest(value) and bodies:
                setattr(node, field, bodies.pop(0))


def _places(
    definitions: list[list[ast.AST]], old: list[ast.AST]
) -> Iterator[tuple[ast.AST, str, slice | None]]:
    """Where a piece of syntax is, in definitions: node, field, and the part of a list of nodes."""
    inside = {id(each): each for _, node in definitions for each in ast.walk(node)}
    holders = {id(each): each for each, _ in definitions} | inside
    for holder in holders.values():
        for field, value in ast.iter_fields(holder):
            if isinstance(value, list):
                for start in range(len(value) - len(old) + 1):
                    at = slice(start, start + len(old))
                    if same(value[at], old) and all(id(each) in inside for each in value[at]):
                        yield holder, field, at
            elif len(old) == 1 and same(value, old[0]) and id(value) in inside:
                yield holder, field, None
