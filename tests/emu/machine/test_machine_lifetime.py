"""Machines come and go without leaving anything."""

import ctypes
import gc
import os

import pytest

from emu.machine.machine import Machine, Prot


def resident_mib():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def use_one(*, close):
    machine = Machine(vcpus=2, ram_bytes=4 << 20)
    text = machine.layout.text
    machine.map(text, 4096, Prot.READ | Prot.EXEC)
    machine.load(text, b"\xb8\x05\x00\x00\x00\xc3")
    assert [cpu.call(text).value for cpu in machine.vcpus] == [5, 5]
    if close:
        machine.close()
        machine.close()


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_many_machines_leak_no_engine(close):
    def burn(number):
        for _ in range(number):
            use_one(close=close)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return resident_mib()

    burn(10)
    before = burn(10)
    assert burn(40) - before < 40  # an engine that stays is 2 MiB at least: 80 of them


def test_an_engine_kept_beyond_its_machine_still_has_its_memory():
    machine = Machine(ram_bytes=1 << 20)
    text = machine.layout.text
    machine.map(text, 4096, Prot.READ | Prot.EXEC)
    machine.load(text, b"\xb8\x05\x00\x00\x00\xf4")
    uc = machine.vcpus[0].uc
    machine.vcpus[0].call(machine.host_call("x", lambda vcpu: None))
    machine.close()
    del machine
    gc.collect()
    uc.emu_start(text, 0)
    from unicorn.x86_const import UC_X86_REG_RAX

    assert uc.reg_read(UC_X86_REG_RAX) == 5


def test_a_context_manager_closes():
    with Machine(ram_bytes=1 << 20) as machine:
        assert len(machine.vcpus) == 1
    assert machine.vcpus == []
