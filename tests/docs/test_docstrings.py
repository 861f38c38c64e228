"""Public methods say what they do, or are one of a documented contract: a base class's or a Protocol's."""

import ast
from collections import defaultdict

from paths import ROOT

FILES = [path for package in ("asm", "emu", "trampoline") for path in sorted((ROOT / package).rglob("*.py"))]
CLASSES = {
    path: [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)] for path in FILES
}


def base_names(node):
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {base.attr if isinstance(base, ast.Attribute) else base.id for base in bases}


def contracts():
    """Documented methods of Protocols under "", of other classes by the class's name."""
    found, bases = defaultdict(set), defaultdict(set)
    for node in (node for nodes in CLASSES.values() for node in nodes):
        documented = {f.name for f in node.body if isinstance(f, ast.FunctionDef) and ast.get_docstring(f)}
        found["" if "Protocol" in base_names(node) else node.name] |= documented
        bases[node.name] |= base_names(node)
    return found, bases


def test_public_methods_are_documented():
    own, bases = contracts()

    def known(name):
        return own[name].union(*(known(base) for base in bases[name] if base in bases))

    missing = [
        f"{path.relative_to(ROOT)}:{method.lineno} {node.name}.{method.name}"
        for path, nodes in CLASSES.items()
        for node in nodes
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and not node.name.startswith("_")
        and not ast.get_docstring(method) and method.name not in own[""] | known(node.name)
    ]  # fmt: skip
    assert len(CLASSES) > 500
    assert not missing
