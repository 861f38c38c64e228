"""Bugs in the machine code of trampolines."""

from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from itertools import islice, takewhile
from typing import Any

from asm import Image
from emu.kernel.text.entry import SITE_SIZE
from trampoline.image.generator import TrampFlag, Trampoline
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import wrap

_TEMPLATE = "trampoline.image.generator._Template"
_GENERATE = "trampoline.image.generator.arch_prepare_bpf_trampoline"
_ACCOUNT = bytes.fromhex("6548c13d")
"""``sar qword ptr gs:[rip + disp32], imm8``: 9 bytes, ending in disp32 and imm8."""
_ACCOUNT_SIZE, _CALL = 9, 0xE8
_Lines = Callable[..., Iterator[str]]


def _without(*starts: str) -> Callable[[_Lines], _Lines]:
    """The lines of a part of the template, without those that begin like this."""

    def make(lines: _Lines) -> _Lines:
        def mutated(*args: Any, **options: Any) -> Iterator[str]:
            return (line for line in lines(*args, **options) if not line.startswith(starts))

        return mutated

    return make


def _no_stack_arguments(save: _Lines) -> _Lines:
    def mutated(template: Any, offset: int, *, for_origin: bool = False) -> Iterator[str]:
        return iter(()) if for_origin else save(template, offset)

    return mutated


def _up_to_the_stack(restore: _Lines) -> _Lines:
    """Load registers only up to the first argument on the stack."""

    def mutated(template: Any) -> Iterator[str]:
        args = zip(template._model.args, template._model.placement(), strict=True)
        before = takewhile(lambda found: found[1][1], args)
        return islice(restore(template), sum(arg.slots for arg, _ in before))

    return mutated


def _site_as_ip(store: _Lines) -> _Lines:
    def mutated(template: Any, offset: int) -> Iterator[str]:
        if template._func_addr is None:
            yield from store(template, offset)
        else:
            yield from template._store_imm(offset, template._body - SITE_SIZE, "ctx[-2]: bpf_get_func_ip()")

    return mutated


def _clears_anyway(save: _Lines) -> _Lines:
    """clean_stack_garbage() with an uninitialised offset, here 0."""

    def mutated(template: Any, offset: int, *, for_origin: bool = False) -> Iterator[str]:
        yield from save(template, offset, for_origin=for_origin)
        model = template._model
        if model.args and model.args[-1].size <= 4 and all(in_regs for _, in_regs in model.placement()):
            yield "mov dword ptr [rbp + 0x4], 0 ; first_off was never set"

    return mutated


def _code_changed(change: Callable[[bytearray, Trampoline, Any], None]) -> Callable[[Any], Any]:
    """``arch_prepare_bpf_trampoline`` with its code changed at each call that has call-depth accounting."""

    def make(generate: Callable[..., Trampoline]) -> Callable[..., Trampoline]:
        def mutated(flavour: Any, boot: Any, *args: Any, **options: Any) -> Trampoline:
            made = generate(flavour, boot, *args, **options)
            if boot.call_depth_offset is None:
                return made
            code = bytearray(made.image.code)
            change(code, made, options)
            image = made.image
            return changed(made, image=Image(image.address, bytes(code), image.symbols, image.lines, image.name))

        return mutated

    return make


def _add(code: bytearray, at: int, distance: int) -> None:
    value = int.from_bytes(code[at : at + 4], "little", signed=True) + distance
    code[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def _ip_before_accounting(code: bytearray, made: Trampoline, options: Any) -> None:
    for line in made.image.lines:
        end = line.offset + line.size
        if code[line.offset : end].startswith(_ACCOUNT) and code[end : end + 1] == bytes([_CALL]):
            _add(code, end + 1, _ACCOUNT_SIZE)


def _as_in_the_template(code: bytearray, made: Trampoline, options: Any) -> None:
    template = options["symbols"]["ftrace_caller"]
    for line in made.image.lines:
        if code[line.offset : line.offset + line.size].startswith(_ACCOUNT):
            _add(code, line.offset + len(_ACCOUNT), made.image.address + line.offset - template)


def _bare_ret(leave: _Lines) -> _Lines:
    def mutated(template: Any) -> Iterator[str]:
        for line in leave(template):
            yield "ret" if "the return thunk" in line else line

    return mutated


def _no_tail_call_count(flags_of: Callable[..., TrampFlag]) -> Callable[..., TrampFlag]:
    def mutated(flavour: Any, *, kept: TrampFlag | int = 0, **options: Any) -> TrampFlag:
        return flags_of(flavour, kept=TrampFlag(kept) & ~TrampFlag.TAIL_CALL_CTX, **options)

    return mutated


MUTANTS = (
    Mutant(
        "callee-saved-register-clobbered",
        "bpf_jit_comp.c:__arch_prepare_bpf_trampoline()",
        "rbx, which holds the start time of programs, is not restored",
        wrap(f"{_TEMPLATE}._leave", _without("mov rbx, [rbp", "pop rbx")),
    ),
    Mutant(
        "seventh-argument-lost",
        "473e3150e30a",
        "the original is called without its stack arguments",
        wrap(f"{_TEMPLATE}._save_args", _no_stack_arguments),
    ),
    Mutant(
        "arguments-behind-a-struct-lost",
        "bpf_jit_comp.c:restore_regs()",
        "registers of arguments that follow a stack argument are not restored for the original",
        wrap(f"{_TEMPLATE}._restore_args", _up_to_the_stack),
    ),
    Mutant(
        "ip-behind-endbr",
        "c09eb2e578eb",
        "bpf_get_func_ip returns the patch site, which follows endbr64, instead of the function",
        wrap(f"{_TEMPLATE}._store_ip", _site_as_ip),
    ),
    Mutant(
        "stray-store",
        "492e797fdab2",
        "the upper half of a stack argument is cleared in functions without stack arguments",
        wrap(f"{_TEMPLATE}._save_args", _clears_anyway),
    ),
    Mutant(
        "ip-before-accounting",
        "9d98aa088386",
        "a call's displacement is computed from the address before its call-depth accounting",
        wrap(_GENERATE, _code_changed(_ip_before_accounting)),
    ),
    Mutant(
        "accounting-not-relocated",
        "6a537453000a",
        "call-depth accounting keeps the rip-relative displacement of the address that it was copied from",
        wrap(_GENERATE, _code_changed(_as_in_the_template)),
    ),
    Mutant(
        "bare-return",
        "d77cfe594ad5",
        "trampolines end in a plain ret although returns must use the return thunk",
        wrap(f"{_TEMPLATE}._leave", _bare_ret),
    ),
    Mutant(
        "tail-call-count-lost",
        "2b5dcb31a19a",
        "a trampoline on a BPF program loses the tail call count in rax",
        wrap("trampoline.tramp_links.flags_of", _no_tail_call_count),
    ),
)
