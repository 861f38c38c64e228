"""Installing into engines that others made, in each of their address modes, and leaving them as they were."""

import pytest
from unicorn import unicorn_const as uc_const
from unicorn import x86_const
from unicorn.unicorn_py3.unicorn import Uc, UcError

from asm import NOP5, assemble, call_rel32
from emu.errors import MachineError, NotMapped
from emu.plugin import ForeignEngine

MODES = ["identity", "virtual TLB", "paging"]
PHYSICAL = 0x400000  # where the engine's memory functions find the code


class Owner:
    """Somebody's engine: two pages of code, and four more in which lodgers may live; a stack."""

    def __init__(self, mode):
        self.uc = Uc(uc_const.UC_ARCH_X86, uc_const.UC_MODE_64)
        self.code = PHYSICAL if mode == "identity" else 0xFFFFFFFF81000000
        self.lent = self.code + 0x2000
        self.data = self.code + 0x4000
        self.stack = self.code + 0x8000
        self.offset = 0 if mode != "paging" else PHYSICAL - self.code
        if mode == "virtual TLB":
            self.uc.ctl_set_tlb_mode(uc_const.UC_TLB_VIRTUAL)
        self.uc.mem_map(self.code + self.offset, 0x8000, uc_const.UC_PROT_ALL)
        if mode == "paging":
            self._page()
        self.function = self.put(self.code, "nop5\nlea rax, [rdi + rdi]\nret")
        self.put(self.code + 0x800, "hlt")

    def _page(self):
        tables = 0x100000
        self.uc.mem_map(tables, 0x4000, uc_const.UC_PROT_ALL)
        for level, shift in enumerate((39, 30, 21)):
            index = self.code >> shift & 511
            self._entry(tables + level * 4096 + index * 8, tables + (level + 1) * 4096)
        for page in range(8):
            no_execute = 1 << 63 if page >= 4 else 0
            self._entry(tables + 0x3000 + page * 8, PHYSICAL + page * 4096 | no_execute)
        self.uc.reg_write(x86_const.UC_X86_REG_CR3, tables)
        self.uc.reg_write(x86_const.UC_X86_REG_CR4, self.uc.reg_read(x86_const.UC_X86_REG_CR4) | 1 << 5)
        self.uc.msr_write(0xC0000080, self.uc.msr_read(0xC0000080) | 1 << 11)
        self.uc.reg_write(x86_const.UC_X86_REG_CR0, self.uc.reg_read(x86_const.UC_X86_REG_CR0) | 1 << 31)

    def _entry(self, at, target):
        self.uc.mem_write(at, (target | 3).to_bytes(8, "little"))

    def put(self, address, text):
        self.uc.mem_write(address + self.offset, assemble(text, address).code)
        return address

    def memory(self):
        return bytes(self.uc.mem_read(self.code + self.offset, 0x7000))

    def call(self, argument, function=None):
        stop = self.code + 0x800
        self.uc.mem_write(self.stack - 16 + self.offset, stop.to_bytes(8, "little"))
        self.uc.reg_write(x86_const.UC_X86_REG_RSP, self.stack - 16)
        self.uc.reg_write(x86_const.UC_X86_REG_RDI, argument)
        self.uc.emu_start(function or self.function, stop)
        return self.uc.reg_read(x86_const.UC_X86_REG_RAX)

    def lab(self, **options):
        return ForeignEngine(self.uc, code=(self.lent, 0x2000), data=(self.data, 0x2000), **options)


@pytest.fixture(params=MODES)
def owner(request):
    return Owner(request.param)


def test_patch_call_and_leave(owner):
    assert owner.call(4) == 8
    before, regions = owner.memory(), list(owner.uc.mem_regions())
    lab = owner.lab()
    calls = lab.alloc_data(8)
    stub = lab.place("inc qword ptr [rip + calls]\nadd rdi, 100\nret", {"calls": calls})
    assert owner.call(4) == 8
    lab.write(owner.function, call_rel32(owner.function, stub.address))
    assert [owner.call(4), owner.call(5)] == [208, 210]
    assert lab.read(calls, 8) == (2).to_bytes(8, "little")
    lab.write(owner.function, NOP5)
    assert owner.call(4) == 8
    lab.write(owner.function, call_rel32(owner.function, stub.address))
    lab.remove()
    lab.remove()
    assert (owner.memory(), list(owner.uc.mem_regions())) == (before, regions)
    assert owner.call(4) == 8


def test_host_calls_see_arguments_and_answer(owner):
    with owner.lab() as lab:
        seen = []

        def answer(engine):
            seen.append(engine.args(8))
            return engine.regs.rdi + 1

        stub = lab.host_call("answer", answer)
        caller = lab.place("push 8\npush 7\nmov esi, 2\ncall stub\nadd rsp, 16\nret", {"stub": stub})
        assert owner.call(41, caller.address) == 42
        assert (seen[0][:2], seen[0][6:]) == ([41, 2], [7, 8])


def test_a_host_call_may_patch_what_runs_next(owner):
    with owner.lab() as lab:
        stub = lab.host_call("patch", lambda engine: engine.write(owner.function, b"\x31\xff\x90\x90\x90"))
        caller = lab.place("push rdi\ncall stub\npop rdi\njmp function", {"stub": stub, "function": owner.function})
        assert owner.call(9) == 18
        assert owner.call(9, caller.address) == 0
    assert owner.call(9) == 18


def test_what_a_host_call_raises_comes_out_of_the_owners_run(owner):
    with owner.lab() as lab:

        def fail(engine):
            raise LookupError("no")

        stub = lab.host_call("fail", fail)
        with pytest.raises(LookupError, match="no"):
            owner.call(1, stub)
    assert owner.call(4) == 8


def test_host_calls_end_with_the_installation(owner):
    seen = []
    with owner.lab() as lab:
        stub = lab.host_call("note", lambda engine: seen.append(1))
        owner.call(1, stub)
    owner.put(owner.lent, "mov eax, 3\nret")
    assert owner.call(1, owner.lent) == 3
    assert seen == [1]


@pytest.mark.parametrize("method", ["native", "portable", "each"])
def test_counting_by_phase_and_function(owner, method):
    with owner.lab(counting=method) as lab:
        stub = lab.host_call("note", lambda engine: None)
        text = ".phase enter\npush rdi\n.phase program\ncall stub\n.phase leave\npop rdi\nret"
        program = lab.place(text, {"stub": stub})
        lab.write(owner.function, call_rel32(owner.function, program.address))
        for _ in range(2):
            with lab.count() as counted:
                assert owner.call(4) == 8
            counts = counted.counts
            assert counts.by_phase == {"other": 4, "enter": 1, "program": 1, "leave": 2}
            assert counts.by_function == {"other": 3, "note": 1, "image": 4}
            assert counts.instructions == 8
        lab.write(owner.function, NOP5)
        with lab.count() as counted:
            owner.call(4)
        assert counted.counts.instructions == 3
    assert owner.call(4) == 8


def test_counts_of_a_run_that_fails(owner):
    with owner.lab() as lab:
        bad = lab.place("nop1\nnop1\nud2")
        with pytest.raises(UcError), lab.count() as counted:
            owner.call(1, bad.address)
        assert counted.counts.instructions == 2


def test_room_is_limited_to_what_was_given(owner):
    before = owner.memory()
    with owner.lab() as lab:
        with pytest.raises(MachineError, match="left of the"):
            lab.alloc_data(0x2001)
        with pytest.raises(MachineError, match="left of the"):
            lab.place(".byte 0x90\n" * 0x2001)
        assert lab.alloc_data(0x2000) == owner.data
        with pytest.raises(MachineError):
            lab.alloc_data(1)
    assert owner.memory() == before


def test_unmapped_memory_is_named(owner):
    hole = owner.code + 0x100000
    with owner.lab() as lab:
        with pytest.raises(NotMapped):
            lab.read(hole, 1)
        with pytest.raises(NotMapped):
            lab.write(owner.code + 0x8000 - 2, b"four")
        assert lab.read(owner.code + 0x8000 - 2, 2) == bytes(2)


def test_mapping_is_done_only_with_leave():
    owner = Owner("identity")
    regions = list(owner.uc.mem_regions())
    with ForeignEngine(owner.uc, code=(0x900000, 0x1000), data=(0x902000, 0x1000), map=True) as lab:
        assert owner.call(3, lab.place("mov eax, 7\nret").address) == 7
        assert len(list(owner.uc.mem_regions())) == 3
    assert list(owner.uc.mem_regions()) == regions
    with pytest.raises(MachineError, match="can't be mapped"):
        ForeignEngine(owner.uc, code=(0x900000, 0x1000), data=(owner.code, 0x1000), map=True)
    assert list(owner.uc.mem_regions()) == regions
