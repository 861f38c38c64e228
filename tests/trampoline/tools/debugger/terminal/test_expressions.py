import pytest

from emu.errors import EmuError
from emu.kernel.text.kallsyms import Kallsyms
from trampoline.bpf.errors import TrampolineError
from trampoline.tools.debugger.terminal.expressions import StepperExpression


class State:
    """Registers, and memory whose words are their own addresses and one."""

    def registers(self):
        return {"rax": 5, "rbp": 0x1000, "rip": 0x20}

    def read(self, address, size):
        return (address + 1).to_bytes(size, "little")


@pytest.fixture
def symbols():
    symbols = Kallsyms()
    symbols.add("vfs_read", 0x4000, 16)
    symbols.add("work.constprop.0", 0x5000, 16)
    symbols.add("shared", 0x6000, 16, "bpf_testmod")
    return symbols


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("0x10", 16),
        ("010", 8),
        ("0", 0),
        ("7ul", 7),
        ("-1", (1 << 64) - 1),
        ("~0 >> 60", 15),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("1 << 64", 0),
        ("1 << 100000000000", 0),
        ("$rax + 8", 13),
        ("$pc", 0x20),
        ("$fp - 8", 0xFF8),
        ("*$rbp", 0x1001),
        ("**($rbp - 0x10)", 0xFF2),
        ("$rax * *$rbp", 5 * 0x1001),
        ("vfs_read+0x5", 0x4005),
        ("work.constprop.0 + 1", 0x5001),
        ("bpf_testmod:shared", 0x6000),
        ("$rax == 5 && vfs_read != 0", 1),
        ("!$rax || $rax < 3", 0),
    ],
)
def test_values(text, value, symbols):
    assert StepperExpression(text).value(State(), symbols) == value


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "f(1)", "1; 2", "(long)3", "'a'", "3.5", "08", '"x"', "$rax = 3", "a ? b : c", "x[1]", "{1}", "("],
)
def test_what_is_no_expression(text):
    with pytest.raises(TrampolineError, match="is not an expression"):
        StepperExpression(text)


def test_deep_nesting_is_refused_or_read():
    text = "(" * 5000 + "1" + ")" * 5000
    with pytest.raises(TrampolineError, match="is not an expression"):
        StepperExpression(text)


@pytest.mark.parametrize(("text", "says"), [("$nix", "no register"), ("nix", "no symbol 'nix'")])
def test_unknown_names(text, says, symbols):
    with pytest.raises((TrampolineError, EmuError), match=says):
        StepperExpression(text).value(State(), symbols)
