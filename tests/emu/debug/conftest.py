from collections.abc import Callable, Iterator

import pytest

from emu.debug import Debugger
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionText

ENTRY = EntryLayout(endbr=True, sealed=bytes.fromhex("660f1f00"), padding=16)
FUNCTIONS = (
    FunctionText("leaf", "mov rax, [rdi]\nadd rax, 1\nmov [rdi], rax\nret"),
    FunctionText(
        "outer",
        """
        push rbp
        mov rbp, rsp
        push rbx
        mov rbx, rsi
        sub rsp, 8
    outer_next:
        call leaf
        push rdi
        pop rdi
        dec rbx
        jne outer_next
        add rsp, 8
        pop rbx
        pop rbp
        ret
        """,
    ),
    FunctionText("naps", "push rbx\nmov rbx, rdi\ncall schedule\nmov rax, [rbx]\npop rbx\nret"),
    FunctionText("copies", "mov rcx, 20\nmov rsi, rdi\nadd rsi, 64\nrep movsb\nmov rax, rcx\nret"),
    FunctionText("reads_badly", "mov eax, 5\nmov rax, [rdi + 3]\nret"),
    FunctionText("divides", "mov eax, 5\nxor edx, edx\ndiv edi\nret"),
    FunctionText("undefined", "mov eax, 5\nud2\nret"),
    FunctionText("goes_wild", "mov eax, 5\njmp rdi"),
    FunctionText("spins", "mov ecx, edi\nspins_on:\ndec ecx\njne spins_on\nmov eax, 7\nret"),
)


class Bench:
    """A debugger over a kernel with ``data``, 256 bytes of memory."""

    def __init__(self, vcpus: int) -> None:
        self.kernel = Kernel(entry=ENTRY, functions=(AssemblyFunctions(FUNCTIONS),), vcpus=vcpus, counting="off")
        self.data = self.kernel.module_data(256, 64)
        self.debugger = Debugger(self.kernel)

    def state(self) -> tuple[object, ...]:
        """Everything that can be seen at a position."""
        debugger = self.debugger
        threads = tuple(
            (thread.number, thread.name, thread.state, thread.cpu)
            + ((tuple(debugger.registers(thread).items()),) if thread.kind == "task" else ())
            for thread in debugger.threads
        )
        machine = self.kernel.machine
        stacks = b"".join(machine.read(task.stack_top - 512, 512) for task in machine.tasks)
        text = b"".join(vcpu.read_code(self.kernel.kallsyms.address("leaf"), 64) for vcpu in machine.vcpus)
        pending = tuple(cpu.pending for cpu in debugger.vcpus())
        return threads, machine.read(self.data, 256), stacks, text, pending, tuple(debugger.events)

    def patch(self, function: str = "leaf") -> Callable[[], None]:
        """An operation that patches a function's first instruction behind endbr64 with a jump to the next one."""
        site, poke = self.kernel.kallsyms.address(function) + 4, self.kernel.text_poke

        def do() -> None:
            with poke.text_mutex:
                poke.text_poke_bp(site, bytes.fromhex("e900000000"))

        return do


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(vcpus: int = 2) -> Bench:
        made.append(Bench(vcpus))
        return made[-1]

    yield make
    for bench in made:
        bench.debugger.close()
        bench.kernel.close()


@pytest.fixture
def bench(make_bench) -> Bench:
    return make_bench()
