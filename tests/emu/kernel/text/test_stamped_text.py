import pytest

from asm import AsmError
from emu.errors import MachineError
from emu.kernel.text.functions import AssemblyFunctions, FunctionText
from emu.kernel.text.stamped_text import StampedFunctions

BODIES = ("mov rax, rdi\nret", "lea rax, [rdi + rsi]\nadd rax, rdx\nadd rax, rdx\nadd rax, rdx\nret")
THREE = StampedFunctions(["same", "other", "same"], [0, 1, 1], BODIES, [7, 8, 9])
SIZES = [13, 23, 23]


def test_names_stand_for_the_first_and_addresses_for_each(kernel):
    text = kernel.add_text(THREE)
    first, second, third = text
    assert [function.size for function in text] == SIZES
    assert [function.btf_id for function in text] == [7, 8, 9]
    assert kernel.function("same") == kernel.functions["same"] == kernel.function_at(first.site) == first
    assert kernel.function_at(third.address + third.size - 1) == third
    assert kernel.function_at(third.address + third.size) is None
    assert kernel.kallsyms.lookup("same").address == first.address
    assert [s.address for s in kernel.kallsyms if s.name == "same"] == [first.address, third.address]
    assert kernel.kallsyms.name(second.address + 2) == "other+0x2"
    assert kernel.kallsyms.at(first.address - 1) is None
    assert [kernel.call(f.address, 1, 20, 300).value for f in text] == [1, 921, 921]
    assert set(kernel.ftrace.records) >= {first.site, second.site, third.site}


def test_between_functions_are_nops_in_front_and_int3_behind(kernel):
    first, second, _ = kernel.add_text(THREE)
    gap = kernel.machine.read(first.address + first.size, second.address - first.address - first.size)
    assert gap == b"\xcc" * (len(gap) - 16) + b"\x90" * 16


def test_what_is_added_one_by_one_lies_behind_and_comes_after(kernel):
    text = kernel.add_text(THREE)
    (own,) = kernel.add_functions(FunctionText("same", "call other\nadd rax, 1\nret"))
    assert own.address >= text.end
    assert kernel.functions["same"] == own == kernel.function_at(own.address)
    assert kernel.function("same").address == text.function(0).address
    assert kernel.call(own.address, 1, 2, 3).value == 13
    again = kernel.add_text(THREE)
    assert again.start >= own.address + own.size
    assert kernel.symbols["other"] == text.function(1).address


def test_the_table_has_every_name_once(kernel):
    before = dict(kernel.functions)
    kernel.add_text(THREE)
    assert dict(kernel.functions).keys() == before.keys() | {"same", "other"}
    assert len(kernel.functions) == len(before) + 2
    assert "other" in kernel.functions
    assert "nobody" not in kernel.functions
    with pytest.raises(KeyError):
        kernel.functions["nobody"]


def test_symbols_are_those_of_the_moment(kernel):
    symbols = kernel.symbols
    names = len(symbols)
    assert symbols.get("late") is None
    symbol = kernel.kallsyms.add("late", 0xFFFFFFFFC1000000, 8)
    assert symbols["late"] == symbol.address
    assert len(symbols) == names + 1 == len(set(symbols))
    kernel.kallsyms.remove(symbol)
    with pytest.raises(KeyError):
        symbols["late"]
    with pytest.raises(ValueError, match="not in list"):
        kernel.kallsyms.remove(symbol)


def test_the_kernels_symbols_come_before_constants_and_those_before_modules(boot):
    kernel = boot(constants={"both": 5, "alone": 6})
    kernel.load_module(
        "mod", AssemblyFunctions((FunctionText("both", "ret"), FunctionText("mine", "ret")), module="mod")
    )
    assert (kernel.symbols["both"], kernel.symbols["alone"]) == (5, 6)
    assert kernel.symbols["mine"] == kernel.kallsyms.address("mod:mine")
    (own,) = kernel.add_functions(FunctionText("both", "ret"))
    assert kernel.symbols["both"] == own.address


def test_listings_are_made_on_demand_and_kept_by_snapshots(kernel):
    before = kernel.machine.snapshot()
    text = kernel.add_text(THREE)
    function = text.function(1)
    assert kernel.machine.images.at(function.address) == function.image
    assert function.image.line_at(function.site).comment == "patch site"
    assert kernel.machine.images.at(function.address - 1) is None
    assert kernel.call("other", 1, 2, 3).counts.by_function == {"other": 7}
    after = kernel.machine.snapshot()
    kernel.machine.restore(before)
    assert kernel.machine.images.at(function.address) is None
    kernel.machine.restore(after)
    assert kernel.machine.images.at(function.address) == function.image


def test_images_do_not_overlap_stamped_text(kernel):
    text = kernel.add_text(THREE)
    with pytest.raises(MachineError, match="already registered"):
        kernel.machine.add_text(text)
    with pytest.raises(MachineError, match="already registered"):
        kernel.machine.add_image(text.function(2).image)


def test_a_body_that_cannot_be_assembled_adds_nothing(kernel):
    symbols, sites = len(kernel.kallsyms), len(kernel.ftrace.records)
    with pytest.raises(AsmError):
        kernel.add_text(StampedFunctions(["bad"], [0], ["call nobody"]))
    assert (len(kernel.kallsyms), len(kernel.ftrace.records), kernel.functions.texts) == (symbols, sites, [])


def test_text_grows_as_it_must(kernel):
    text = kernel.add_text(StampedFunctions([f"f{n}" for n in range(70_000)], [0] * 70_000, BODIES[:1]))
    assert text.end - text.start > 2 << 20
    assert kernel.call("f69999", 42).value == 42
    assert kernel.call(kernel.add_functions(FunctionText("behind", "jmp f1"))[0].address, 7).value == 7
