"""Code of an ELF object that contains one function and needs no linking."""

from emu.elf.errors import ElfError
from emu.elf.reader import SectionType, read_elf
from trampoline.bpf.errors import ObjectError

_EM_BPF = 247


def code_of(elf: bytes) -> bytes:
    """The content of the object's only executable section.

    Raises ObjectError for a file that is not a BPF object, an object with no such section or several, or with
    relocations.
    """
    try:
        file = read_elf(elf, symbols=False)
    except ElfError as error:
        raise ObjectError(error.reason, section=error.section) from None
    if file.machine != _EM_BPF:
        raise ObjectError(f"an object for machine {file.machine}, BPF is {_EM_BPF}")
    code = [one for one in file.sections if one.type == SectionType.PROGBITS and one.executable and one.size]
    if len(code) != 1:
        raise ObjectError(f"{len(code)} sections of code, not one")
    for section in file.sections:
        if section.type in (SectionType.RELA, SectionType.REL) and section.info == code[0].index and section.size:
            raise ObjectError("the code has relocations, which need linking")
    return code[0].content
