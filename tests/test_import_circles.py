"""Import circles: none when modules are loaded; for types or inside functions only the documented ones."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from paths import ROOT

MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in ("asm", "emu", "trampoline")
    for file in (ROOT / package).rglob("*.py")
}
PAGE = ROOT / "docs" / "contributing.md"
ROWS = re.findall(r"^\| `([\w/]+)` \| ((?:`[\w.]+`(?:, )?)+) \| .+ \|$", PAGE.read_text(), re.M)
DOCUMENTED = [
    {f"{folder.replace('/', '.')}.{name}" for name in re.findall(r"`([^`]+)`", names)} for folder, names in ROWS
]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(module: str, *, at_load: bool) -> Iterator[str]:
    """The project's modules that one imports: all of them, or those that loading it imports."""

    def nodes(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            is_later = isinstance(child, (ast.FunctionDef, ast.Lambda)) or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            )
            if not (at_load and is_later):
                yield child
                yield from nodes(child)

    for node in nodes(tree_of(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                full if (full := f"{node.module}.{alias.name}") in MODULES else str(node.module) for alias in node.names
            ]
        else:
            continue
        yield from (name for name in names if name in MODULES and name != module)


def test_no_modules_import_each_other_when_they_are_loaded():
    try:
        TopologicalSorter({module: set(imports(module, at_load=True)) for module in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_other_circles_are_documented():
    graph = {module: set(imports(module, at_load=False)) for module in MODULES}
    for circle in DOCUMENTED:
        for module in circle:
            graph[module] -= circle
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("circle", DOCUMENTED, ids=[min(circle) for circle in DOCUMENTED])
def test_a_documented_circle_is_one(circle):
    """The table has no module that left its circle."""
    assert len(circle) > 1
    for module in circle:
        assert circle & set(imports(module, at_load=False)), f"{module} imports none of its circle"
