"""Address map of the guest: base addresses of its regions."""

from dataclasses import dataclass

PAGE_SIZE = 4096
PAGE_SHIFT = 12
PAGE_MASK = PAGE_SIZE - 1
ADDRESS_MASK = (1 << 64) - 1


def round_up(number: int, to: int) -> int:
    """The next multiple of ``to``, or ``number`` if it is one."""
    return (number + to - 1) // to * to


@dataclass(frozen=True, slots=True)
class AddressMap:
    """Bases of the regions of the guest's address space; those of x86_64 Linux unless said otherwise.

    Guest virtual addresses (Documentation/arch/x86/x86_64/mm.rst). A boot with KASLR uses another value. The machine
    itself maps only host-call stubs and the stacks of its tasks; the builder of a kernel uses the other regions.
    """

    text: int = 0xFFFFFFFF81000000
    modules: int = 0xFFFFFFFFC0000000
    """Modules and BPF images, within 2 GiB of ``text``."""
    direct_map: int = 0xFFFF888000000000
    vmalloc: int = 0xFFFFC90000000000
    percpu: int = 0xFFFF888100000000
    host_calls: int = 0xFFFFFFFFBF000000
    """Stubs of host calls, within reach of ``call rel32`` from text and modules."""
    poke: int = 0x00007F0000000000
    """Addresses for a writable alias of text (the kernel's ``poking_addr`` is a user address as well)."""
    stacks: int = 0xFFFFC90000800000
    """Kernel stacks, each with an unmapped guard page below."""


def is_canonical(address: int) -> bool:
    """True if 4-level paging can translate a 64-bit address."""
    return 0 <= address < 1 << 47 or (1 << 64) - (1 << 47) <= address < 1 << 64
