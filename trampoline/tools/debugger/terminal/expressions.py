"""Expressions in C syntax, as in gdb: ``$rax + 8``, ``vfs_read+0x10``, ``*($rbp - 8)``, ``$rdi == 2``.

pycparser parses them (its nodes have type Any). Values are unsigned 64-bit words: a name is the address of a kernel
symbol, ``$name`` a register, ``*X`` the word at X.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from emu.kernel.text.kallsyms import Kallsyms
from trampoline.bpf.errors import TrampolineError

MASK = (1 << 64) - 1
WORD = 8
_DOTTED = re.compile(r"(?<![\w$.])[A-Za-z_.][\w.]*[.:][\w.]+")
"""Symbols that are not C identifiers: a module's, a compiler's clone of a function."""
_STANDS_FOR = re.compile(r"\$\$(\d+)")
_TWO: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": lambda word, places: word << min(places, 64),
    ">>": lambda word, places: word >> min(places, 64),
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "&&": lambda one, other: bool(one and other),
    "||": lambda one, other: bool(one or other),
}
_ONE: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}
_ALIASES = {"pc": "rip", "sp": "rsp", "fp": "rbp"}
"""Machine-independent register names of gdb."""


class ExpressionState(Protocol):
    """Registers and memory that an expression is evaluated on."""

    def registers(self) -> Mapping[str, int]:
        """Registers of the present thread."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Read ``size`` bytes of guest memory."""
        ...


def register(name: str, known: Mapping[str, int]) -> str:
    """The debugger's name of a register. Raises TrampolineError for an unknown one."""
    bare = name.removeprefix("$")
    bare = _ALIASES.get(bare, bare)
    if bare not in known:
        raise TrampolineError(f"no register {name}; the registers are {', '.join(known)}")
    return bare


class StepperExpression:
    """A parsed expression; symbols are looked up on evaluation. Raises TrampolineError for a syntax error."""

    def __init__(self, text: str) -> None:
        from pycparser import c_ast, c_parser

        self.text = text.strip()
        self._ast: Any = c_ast
        self._names: list[str] = []
        c = _DOTTED.sub(self._stand_in, self.text)
        try:
            (declaration,) = c_parser.CParser().parse(f"long _ = ({c});").ext
        except (c_parser.ParseError, RecursionError, ValueError):
            raise self._refused() from None
        self._tree = getattr(declaration, "init", None)
        self._check(self._tree)

    def value(self, state: ExpressionState, symbols: Kallsyms) -> int:
        """The value, 64 bits unsigned. Raises TrampolineError for an unknown register; what lookups and reads raise."""
        return self._of(self._tree, state, symbols)

    def _stand_in(self, found: re.Match[str]) -> str:
        self._names.append(found[0])
        return f"$${len(self._names) - 1}"

    def _refused(self) -> TrampolineError:
        return TrampolineError(f"{self.text!r} is not an expression: $rax + 8, vfs_read, *($rbp - 8), $rdi == 2")

    def _check(self, node: Any) -> None:
        c = self._ast
        known = (
            isinstance(node, c.ID)
            or (isinstance(node, c.Constant) and "int" in node.type)
            or (isinstance(node, c.UnaryOp) and (node.op == "*" or node.op in _ONE))
            or (isinstance(node, c.BinaryOp) and node.op in _TWO)
        )
        if not known:
            raise self._refused()
        for child in node:
            self._check(child)

    def _of(self, node: Any, state: ExpressionState, symbols: Kallsyms) -> int:
        c = self._ast
        if isinstance(node, c.Constant):
            return _number(node.value) & MASK
        if isinstance(node, c.ID):
            dotted = _STANDS_FOR.fullmatch(node.name)
            if dotted is None and node.name[0] == "$":
                registers = state.registers()
                return registers[register(node.name, registers)]
            return symbols.address(self._names[int(dotted[1])] if dotted else node.name)
        if isinstance(node, c.UnaryOp):
            operand = self._of(node.expr, state, symbols)
            if node.op == "*":
                return int.from_bytes(state.read(operand, WORD), "little")
            return int(_ONE[node.op](operand)) & MASK
        left, right = self._of(node.left, state, symbols), self._of(node.right, state, symbols)
        return int(_TWO[node.op](left, right)) & MASK


def _number(text: str) -> int:
    digits = text.rstrip("uUlL")
    return int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
