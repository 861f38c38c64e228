"""The error code of a page fault, which Unicorn does not tell (Intel SDM volume 3, "Page-Fault Exceptions")."""

from emu.errors import NotMapped
from emu.machine.faults import LONGEST_INSTRUCTION, writes
from emu.vmlinux.dump_errors import MissingPage
from emu.vmlinux.page_walk import NX, WRITABLE, PageTables

PRESENT_PAGE, WRITE, FETCH = 1, 2, 16


def error_code(memory: PageTables, rip: int, address: int) -> int:
    """Of the fault that the instruction at ``rip`` gave in kernel mode by touching ``address``."""
    try:
        found = memory.entry(address)
    except MissingPage:
        found = None
    code = 0 if found is None else PRESENT_PAGE
    if rip <= address < rip + LONGEST_INSTRUCTION and (found is None or found[0] & NX):
        return code | FETCH
    if found is not None and not found[0] & WRITABLE:
        return code | WRITE
    try:
        instruction = memory.read(rip, LONGEST_INSTRUCTION)
    except (NotMapped, MissingPage):
        instruction = memory.read_sparse(rip, LONGEST_INSTRUCTION)
    return code | (WRITE if writes(instruction) else 0)
