
import pytest

from emu.kernel.errors import KernelError
from emu.kernel.module.load_object import load_object
from emu.kernel.module.object_reader import ModuleError
from emu.kernel.text.functions import FunctionText
from paths import FIXTURES

OBJECTS = FIXTURES / "objects"


def everything(kernel):
    return dict(kernel.execmem.images), len(kernel.kallsyms), dict(kernel.functions), dict(kernel.ftrace.records)


@pytest.fixture
def outside(kernel):
    kernel.add_functions(FunctionText("outside", "lea rax, [rdi + 1000]\nret"))
    return kernel


@pytest.mark.parametrize("name", ["call-branch", "call-none", "nop-branch", "nop-none"])
def test_compiled_functions_run(outside, name):
    kernel = outside
    placed = {f.name: f for f in load_object(kernel, OBJECTS / f"{name}.o")}
    assert kernel.call("add", 2, 3).value == 5
    assert kernel.call("calls", 5, 7).value == 10 + 8 + 1005
    assert kernel.call("eight", 1, 2, 3, 4, 5, 6, stack_args=(7, 8)).value == 204
    assert kernel.call("hidden_at", 1).value == 5
    assert all(f.site in kernel.ftrace.records for f in placed.values() if f.name != "untraced")
    assert placed["untraced"].site is None


def test_sites_are_where_the_compiler_put_them(outside):
    placed = {f.name: f for f in load_object(outside, OBJECTS / "call-branch.o")}
    assert placed["add"].site == placed["add"].address + 4
    assert outside.machine.read(placed["add"].site, 5) == bytes.fromhex("0f1f440000")


def test_an_undefined_symbol_leaves_nothing_behind(kernel):
    before = everything(kernel)
    with pytest.raises(ModuleError, match="outside"):
        load_object(kernel, OBJECTS / "call-branch.o")
    assert everything(kernel) == before


def test_a_prototype_of_no_function(outside):
    before = everything(outside)
    with pytest.raises(KernelError, match="no function nothing"):
        load_object(outside, OBJECTS / "call-branch.o", {"nothing": "int nothing(void)"})
    assert everything(outside) == before


def test_a_broken_object(kernel, tmp_path):
    path = tmp_path / "broken.o"
    path.write_bytes((OBJECTS / "call-branch.o").read_bytes()[:200])
    before = everything(kernel)
    with pytest.raises(ModuleError, match=r"broken\.o"):
        load_object(kernel, path)
    assert everything(kernel) == before
