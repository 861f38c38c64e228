"""Words of the floor's own state, in guest memory: machine code works on them, and they are saved with the memory."""

__all__ = [
    "CLASSES",
    "CLOCK",
    "FREED",
    "FREE_LISTS",
    "HEAP",
    "HEAP_END",
    "HEAP_NEXT",
    "HEAP_SIZE",
    "PERCPU_NEXT",
    "POISON",
    "POISONED",
    "PRINT_BUFFER",
    "PRINT_BUFFER_SIZE",
    "SEED",
    "STATE",
    "TEXT_NEXT",
    "VMAP",
    "VMAP_NEXT",
    "VMEMMAP",
]  # fmt: skip

HEAP, HEAP_SIZE = 0xFFFF888100000000, 1 << 30
"""Allocations of every kind: in the direct map, physical address 4 GiB."""
VMEMMAP = 0xFFFFEA0000000000 + (0x100000000 >> 12) * 64
"""``struct page`` of the heap's first page; 64 bytes each."""
VMAP = 0xFFFFC90100000000
CLASSES = 0xFFFFFE8000000000
"""One byte for each 64 of the heap: log2 of the size of the object that begins there, 0 elsewhere."""
FREED = 0x80
"""Bit of such a byte: the object is free."""
STATE = CLASSES + (HEAP_SIZE >> 6)
HEAP_NEXT, HEAP_END, PERCPU_NEXT, TEXT_NEXT, CLOCK, SEED, VMAP_NEXT = (STATE + 8 * word for word in range(7))
FREE_LISTS = STATE + 0x100
"""First free object by class; each free object's first word is the next one's address."""
TEXT, TEXT_END = 0xFFFFFFFFC0000000, 0xFFFFFFFFDEF00000
"""The modules' area, less its last MiB, which is the floor's own code."""
FREE_TEXT, FREE_TEXT_SLOTS, TEXT_PAGES = STATE + 0x8000, 1024, STATE + 0x10000
"""Addresses of freed text, 0 for an empty slot; and for each page of the area how many an allocation there has."""
PRINT_BUFFER, PRINT_BUFFER_SIZE = STATE + 0x1000, 0x1000
POISON, POISONED = 0x6B, 512
"""Poison of a freed object's first bytes (``POISON_FREE``), and how many after the first word at most."""
