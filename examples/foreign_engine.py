"""Install into a Unicorn engine that somebody else made: patch their function, count, and leave without a trace."""

from unicorn.unicorn_const import UC_ARCH_X86, UC_MODE_64, UC_PROT_ALL, UC_PROT_EXEC, UC_PROT_READ
from unicorn.unicorn_py3.unicorn import Uc
from unicorn.x86_const import UC_X86_REG_RAX, UC_X86_REG_RDI, UC_X86_REG_RSP

from asm import assemble, call_rel32
from emu.plugin import ForeignEngine

FUNCTION, STACK, LENT = 0x400000, 0x7F0000, 0x500000
TRIANGULAR = """
    nop5                    ; where a tracer may hook in
    xor eax, eax
    test rdi, rdi
    jz done
    push rdi
    dec rdi
    call function
    pop rdi
    add rax, rdi
done:
    ret
"""


def owners_engine() -> Uc:
    """An engine with a function of its owner's, which adds up the numbers from 1 to rdi by recursion."""
    uc = Uc(UC_ARCH_X86, UC_MODE_64)
    uc.mem_map(FUNCTION, 0x1000, UC_PROT_READ | UC_PROT_EXEC)
    uc.mem_write(FUNCTION, assemble(TRIANGULAR, FUNCTION, {"function": FUNCTION}).code)
    uc.mem_map(STACK, 0x4000, UC_PROT_ALL)
    return uc


def call(uc: Uc, argument: int) -> int:
    """The owner calls the function."""
    stop = FUNCTION + 0x800
    uc.mem_write(STACK + 0x3FF8, stop.to_bytes(8, "little"))
    uc.reg_write(UC_X86_REG_RSP, STACK + 0x3FF8)
    uc.reg_write(UC_X86_REG_RDI, argument)
    uc.emu_start(FUNCTION, stop)
    return int(uc.reg_read(UC_X86_REG_RAX))


def main() -> None:
    uc = owners_engine()
    before = uc.mem_read(FUNCTION, 0x1000)
    arguments: list[int] = []
    with ForeignEngine(uc, code=(LENT, 0x1000), data=(LENT + 0x1000, 0x1000), map=True) as lab:
        calls = lab.alloc_data(8)
        record = lab.host_call("record", lambda engine: arguments.append(engine.args(1)[0]))
        stub = lab.place(
            """
            .phase enter
            lock inc qword ptr [rip + calls]
            .phase program
            call record
            .phase leave
            ret
            """,
            {"calls": calls, "record": record},
            name="stub",
        )
        lab.write(FUNCTION, call_rel32(FUNCTION, stub.address))
        with lab.count() as counted:
            total = call(uc, 4)
        print(f"1 + ... + 4 = {total}, in {lab.read(calls, 1)[0]} calls with {arguments}")
        if counted.counts is not None:
            print(f"{counted.counts.instructions} instructions, by function {counted.counts.by_function}")
    assert uc.mem_read(FUNCTION, 0x1000) == before
    mappings = len(list(uc.mem_regions()))
    print(f"removed: 1 + ... + 4 = {call(uc, 4)}, {mappings} mappings, {len(arguments)} calls seen")


if __name__ == "__main__":
    main()
