"""The code of an ELF object that has one function's instructions and nothing that would have to be linked."""

from struct import Struct, error

from trampoline.bpf.errors import ObjectError

_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, little endian
_EM_BPF = 247
_SHT_PROGBITS, _SHT_RELA, _SHT_REL = 1, 4, 9
_SHF_EXECINSTR = 4
_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")


def code_of(elf: bytes) -> bytes:
    """The content of the object's only executable section.

    ObjectError for what is no BPF object, an object with no such section or several, or one with relocations.
    """
    if elf[: len(_IDENTITY)] != _IDENTITY:
        raise ObjectError("no ELF object of 64 bits, little endian")
    try:
        return _code_of(elf)
    except (error, OverflowError):
        raise ObjectError("the object ends within a header") from None


def _code_of(elf: bytes) -> bytes:
    header = _HEADER.unpack_from(elf)
    machine, table, count = header[2], header[6], header[12]
    if machine != _EM_BPF:
        raise ObjectError(f"an object for machine {machine}, BPF is {_EM_BPF}")
    sections = [_SECTION.unpack_from(elf, table + _SECTION.size * index) for index in range(count)]
    code = [
        (index, offset, size)
        for index, (_, kind, flags, _, offset, size, *_) in enumerate(sections)
        if kind == _SHT_PROGBITS and flags & _SHF_EXECINSTR and size
    ]
    if len(code) != 1:
        raise ObjectError(f"{len(code)} sections of code, one is needed")
    ((number, start, length),) = code
    for _, kind, _, _, _, size, _, info, *_ in sections:
        if kind in (_SHT_RELA, _SHT_REL) and info == number and size:
            raise ObjectError("the code has relocations, and there is nothing to link it with")
    if start + length > len(elf):
        raise ObjectError("the object ends within its code")
    return elf[start : start + length]
