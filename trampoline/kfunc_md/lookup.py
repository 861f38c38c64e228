"""Guest look-ups: assembly text that finds the metadata of the entered function.

Each leaves the address of a ``kfunc_md`` in ``out`` and falls through, or jumps to ``missing`` if there is none; a
concurrent resize or removal is safe at any instruction. The caller must be code that Tasks RCU waits for (a trampoline,
a stub): replaced tables and metadata stay for such a grace period.
"""

from dataclasses import dataclass

from emu.kernel.routines.ftrace import GOLDEN_RATIO_64

MARKER = 0xB8
"""First byte of claimed padding, before the pointer: together a ``mov eax, imm32``, if it was ever executed."""
FLAT_BASE = -0x1000_0000
"""Sign-extended displacement of the flat table's entry for address 2**64."""


@dataclass(frozen=True, slots=True)
class Entered:
    """Operand, a register or memory, from which a look-up gets the entered function.

    ``is_return_address``: the word that the call at the patch site pushed. Functions are 16-byte aligned and the site
    is within their first 15 bytes, so rounding down yields the function's address.
    """

    operand: str = "rdi"
    is_return_address: bool = False


@dataclass(frozen=True, slots=True)
class LookupRegisters:
    """Registers of a look-up. The hash also clobbers rcx; padding and the flat table use only ``out``.

    The hash leaves the function's address in ``key``. ValueError for a duplicate register, or rcx.
    """

    out: str = "rax"
    key: str = "rdi"
    scratch: str = "rdx"

    def __post_init__(self) -> None:
        if len({self.out, self.key, self.scratch, "rcx"}) != 4:
            raise ValueError(f"{self.out}, {self.key}, {self.scratch} and rcx must be four registers")


def hash_lookup(
    entered: Entered, *, label: str, missing: str, registers: LookupRegisters, unchecked: bool = False
) -> str:
    """Look-up in the hash table: 10 instructions to the first metadata of a chain, 16 to the second, 5 more for each
    further one.

    In addition 1 to load the address into ``key``, and 1 to round a return address down. ``unchecked``: the end of a
    chain falls through too, with 0 in ``out``.
    """
    out, key, table = registers.out, registers.key, registers.scratch
    end = f"{label}_found" if unchecked else missing
    return f"""{_load_key(entered, key)}
    mov {table}, qword ptr [rip + kfunc_mds]           ; rcu_dereference(kfunc_mds)
    mov {out}, {GOLDEN_RATIO_64:#x}                    ; hash_64(func, hash_bits)
    imul {out}, {key}
    movzx ecx, byte ptr [{table} + kfunc_md_array.shift]
    shr {out}, cl
    mov {out}, qword ptr [{table} + {out}*8 + kfunc_md_array.mds]
    test {out}, {out}
    jz {end}
    cmp qword ptr [{out} + kfunc_md.func], {key}
    je {label}_found
    movzx {table}, byte ptr [{table} + kfunc_md_array.link]
{label}_next:
    mov {out}, qword ptr [{out} + {table}]
    test {out}, {out}
    jz {end}
    cmp qword ptr [{out} + kfunc_md.func], {key}
    jne {label}_next
{label}_found:
"""


def padding_lookup(
    entered: Entered, padding: int, *, label: str, missing: str, registers: LookupRegisters, checked: bool = False
) -> str:
    """Look-up in padding: 5 instructions from a return address, 3 from a register with the function's address.

    ``padding``: number of bytes in front of a function, of which the first 5 are claimed. ``checked``: 2 instructions
    more, for code that may be entered from functions whose padding was never claimed.
    """
    out = registers.out
    if not entered.is_return_address and entered.operand == registers.key:
        load, base = "", registers.key
    else:
        load, base = _load(entered, out), out
    check = f"""
    cmp byte ptr [{base} - {padding}], {MARKER:#x}      ; claimed? Before the pointer: a removal clears both at once
    jne {missing}
"""
    return f"""{load}{check if checked else ""}
    movsxd {out}, dword ptr [{base} - {padding - 1}]    ; metadata is in the top 2 GiB
    test {out}, {out}
    jz {missing}
"""


def flat_lookup(entered: Entered, *, label: str, missing: str, registers: LookupRegisters) -> str:
    """Look-up in the flat table: 5 instructions for any operand; it need not be rounded down."""
    out = registers.out
    return f"""
    mov {out}, {entered.operand}
    sar {out}, 4                                       ; one entry for 16 bytes of text
    movsxd {out}, dword ptr [{out}*4 - {-FLAT_BASE:#x}]
    test {out}, {out}
    jz {missing}
"""


def _load_key(entered: Entered, key: str) -> str:
    if entered.operand == key:
        return f"\n    and {key}, -16                      ; the function" if entered.is_return_address else ""
    return _load(entered, key)


def _load(entered: Entered, register: str) -> str:
    text = f"\n    mov {register}, {entered.operand}"
    return text + (f"\n    and {register}, -16                 ; the function" if entered.is_return_address else "")
