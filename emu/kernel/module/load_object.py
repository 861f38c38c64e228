"""Loading of compiled objects: placed, relocated, their functions traceable at their own patch sites."""

from collections.abc import Mapping
from errno import ENOENT
from pathlib import Path

from asm import image_of
from emu.kernel.errors import KernelError
from emu.kernel.kernel import Kernel
from emu.kernel.module.object_reader import Section, link_object, read_object
from emu.kernel.text.functions import PlacedFunction
from emu.machine.address_map import PAGE_SIZE


def load_object(
    kernel: Kernel, source: str | Path | bytes, prototypes: Mapping[str, str] | None = None, *, name: str = ""
) -> list[PlacedFunction]:
    """Link an object (``gcc -c -pg -mfentry -mcmodel=kernel``) into the kernel; returns its functions, by address.

    ``prototypes``: C declarations by function name, as an object has none. Undefined symbols are looked up in kallsyms.
    Raises emu.kernel.module.object_file.ModuleError for an object that can't be used, KernelError (-ENOENT) for a
    prototype of a function that it does not have, KernelError (-ENOMEM); then nothing stays allocated.
    """
    obj = read_object(source, name)
    known = dict(prototypes or {})
    missing = sorted(known.keys() - {function.name for function in obj.functions})
    if missing:
        raise KernelError(ENOENT, f"{obj.name} has no function {', '.join(missing)}")
    allocated: list[int] = []

    def place(section: Section) -> int:
        if section.executable:
            address = kernel.execmem.alloc(
                max(section.size, 1) + section.alignment + PAGE_SIZE, f"{section.name} of {obj.name}"
            )
            allocated.append(address)
            return (address + section.alignment - 1) // section.alignment * section.alignment
        return kernel.module_data(section.size, section.alignment)

    try:
        linked = link_object(obj, place, lambda wanted: kernel.symbols.get(wanted))
    except BaseException:
        for address in allocated:
            kernel.execmem.free(address)
        raise
    text: dict[int, bytes] = {}
    for section in linked.sections:
        if section.executable:
            kernel.execmem.write(section.address, section.content)
            text[section.address] = section.content
        else:
            kernel.machine.write(section.address, section.content)
    placed = []
    for function in linked.functions:
        start = max(address for address in text if address <= function.address)
        code = text[start][function.address - start :][: function.size]
        image = image_of(code, function.address, function.name)
        made = PlacedFunction(
            function.name, function.address, function.size, function.site, known.get(function.name, ""), image
        )
        kernel.adopt(made)
        placed.append(made)
    return placed
