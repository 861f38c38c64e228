"""Map look-ups as guest code, and the operations of ``map->ops`` (kernel/bpf/arraymap.c, hashtab.c, helpers.c).

Look-ups and iterations are guest instructions, so that their cost counts; updates and deletions are host calls.
"""

from collections.abc import Callable, Iterator

from trampoline.bpf.helpers.runtime.definition import GuestHelper, Helper, HelperCall, PythonHelper
from trampoline.bpf.maps.jhash import FINAL, GOLDEN, MIX

_REGISTER = {"a": "eax", "b": "edx", "c": "r9d"}
"""The hash's state during ``__htab_map_lookup_elem``."""


def _mix() -> Iterator[str]:
    for x, y, count, z in MIX:
        first, second, third = _REGISTER[x], _REGISTER[y], _REGISTER[z]
        yield f"    sub {first}, {second}\n    mov r10d, {second}\n    rol r10d, {count}"
        yield f"    xor {first}, r10d\n    add {second}, {third}"


def _final() -> Iterator[str]:
    for x, y, count in FINAL:
        first, second = _REGISTER[x], _REGISTER[y]
        yield f"    xor {first}, {second}\n    mov r10d, {second}\n    rol r10d, {count}\n    sub {first}, r10d"


def _tail(name: str, register: str) -> str:
    """Add the key's next word, or its last bytes, to one of the hash's numbers."""
    return f"""
    cmp ecx, 4
    jb __htab_map_lookup_elem_part_{name}
    add {register}, dword ptr [r8]
    add r8, 4
    sub ecx, 4
    je __htab_map_lookup_elem_final
"""


def _part(name: str, register: str) -> str:
    return f"""
__htab_map_lookup_elem_part_{name}:                ; one to three bytes, the last one on top
    xor r10d, r10d
__htab_map_lookup_elem_byte_{name}:
    shl r10d, 8
    movzx r11d, byte ptr [r8 + rcx - 1]
    or r10d, r11d
    sub ecx, 1
    jne __htab_map_lookup_elem_byte_{name}
    add {register}, r10d
    jmp __htab_map_lookup_elem_final
"""


LOOKUP_ELEMENT = "\n".join(
    (
        f"""
    mov ecx, dword ptr [rdi + bpf_map.key_size]
    mov r8, rsi
    mov eax, dword ptr [rdi + bpf_htab.hashrnd]
    lea eax, [rax + rcx + {GOLDEN - (1 << 32)}]    ; jhash(key, key_size, hashrnd)
    mov edx, eax
    mov r9d, eax
    cmp ecx, 12
    jbe __htab_map_lookup_elem_tail
__htab_map_lookup_elem_words:
    add eax, dword ptr [r8]
    add edx, dword ptr [r8 + 4]
    add r9d, dword ptr [r8 + 8]
""",
        *_mix(),
        """
    add r8, 12
    sub ecx, 12
    cmp ecx, 12
    ja __htab_map_lookup_elem_words
__htab_map_lookup_elem_tail:
    test ecx, ecx
    je __htab_map_lookup_elem_hashed
""",
        _tail("a", "eax"),
        _tail("b", "edx"),
        """
    cmp ecx, 4
    jb __htab_map_lookup_elem_part_c
    add r9d, dword ptr [r8]
__htab_map_lookup_elem_final:
""",
        *_final(),
        """
__htab_map_lookup_elem_hashed:
    mov r10d, dword ptr [rdi + bpf_htab.n_buckets]
    sub r10d, 1
    and r10d, r9d
    mov r11, r10
    shl r11, 4                                     ; sizeof(struct bucket)
    add r11, qword ptr [rdi + bpf_htab.buckets]
__htab_map_lookup_elem_again:
    mov rax, qword ptr [r11 + bucket.first]
__htab_map_lookup_elem_next:
    test al, 1
    jne __htab_map_lookup_elem_end
    cmp dword ptr [rax + htab_elem.hash], r9d
    jne __htab_map_lookup_elem_other
    mov ecx, dword ptr [rdi + bpf_map.key_size]
    xor edx, edx
__htab_map_lookup_elem_compare:
    cmp ecx, 8
    jb __htab_map_lookup_elem_bytes
    mov r8, qword ptr [rsi + rdx]
    cmp r8, qword ptr [rax + rdx + htab_elem.sizeof]
    jne __htab_map_lookup_elem_other
    add edx, 8
    sub ecx, 8
    jmp __htab_map_lookup_elem_compare
__htab_map_lookup_elem_bytes:
    test ecx, ecx
    je __htab_map_lookup_elem_found
    movzx r8d, byte ptr [rsi + rdx]
    cmp r8b, byte ptr [rax + rdx + htab_elem.sizeof]
    jne __htab_map_lookup_elem_other
    add edx, 1
    sub ecx, 1
    jmp __htab_map_lookup_elem_bytes
__htab_map_lookup_elem_other:
    mov rax, qword ptr [rax + htab_elem.next]
    jmp __htab_map_lookup_elem_next
__htab_map_lookup_elem_end:
    shr rax, 1                                     ; the list's own number, or an element went to another one
    cmp rax, r10
    jne __htab_map_lookup_elem_again
    xor eax, eax
__htab_map_lookup_elem_found:
    ret
""",
        *(_part(name, register) for name, register in _REGISTER.items()),
    )
)

_VALUE = """
    mov edx, dword ptr [rdi + bpf_map.key_size]
    add edx, 7
    and edx, -8
    lea rax, [rax + rdx + htab_elem.sizeof]
"""
"""From the element in rax to its value; the map is in rdi."""
_THIS_CPU = """
    mov rax, qword ptr [rax]
    add rax, qword ptr gs:[percpu.this_cpu_off]
"""


def _hash_lookup(name: str, *, lru: bool = False, percpu: bool = False) -> GuestHelper:
    mark = "    mov byte ptr [rax + htab_elem.lru_ref], 1      ; bpf_lru_node_set_ref()\n" if lru else ""
    text = f"""
    call __htab_map_lookup_elem
    test rax, rax
    je {name}_none
{mark}{_VALUE}{_THIS_CPU if percpu else ""}
{name}_none:
    ret
"""
    return GuestHelper(name, text)


def _percpu_elem(name: str, find: str, *, lru: bool = False) -> GuestHelper:
    """``bpf_map_lookup_percpu_elem`` of a type; the CPU is in edx."""
    mark = "    mov byte ptr [rax + htab_elem.lru_ref], 1\n" if lru else ""
    text = f"""
    cmp edx, cpus
    jae {name}_none
    push rbx
    mov ebx, edx
    call __htab_map_lookup_elem
    test rax, rax
    je {name}_pop
{mark}{_VALUE}
    mov rax, qword ptr [rax]
    imul rbx, rbx, percpu_stride
    mov rdx, percpu_base
    add rax, rdx
    add rax, rbx
{name}_pop:
    pop rbx
    ret
{name}_none:
    xor eax, eax
    ret
"""
    array = f"""
    cmp edx, cpus
    jae {name}_none
    mov eax, dword ptr [rsi]
    cmp eax, dword ptr [rdi + bpf_map.max_entries]
    jae {name}_none
    mov rax, qword ptr [rdi + rax*8 + bpf_array.pptrs]
    imul rdx, rdx, percpu_stride
    add rax, rdx
    mov rdx, percpu_base
    add rax, rdx
    ret
{name}_none:
    xor eax, eax
    ret
"""
    return GuestHelper(name, text if find == "hash" else array)


def _operation(member: str) -> GuestHelper:
    """A helper that is one indirect call: ``map->ops->member``."""
    name = f"bpf_{member}"
    text = f"""
    mov rax, qword ptr [rdi + bpf_map.ops]
    mov rax, qword ptr [rax + bpf_map_ops.{member}]
    jmp rax
"""
    return GuestHelper(name, text)


_GUEST = (
    *(_operation(member) for member in ("map_lookup_elem", "map_update_elem", "map_delete_elem")),
    _operation("map_lookup_percpu_elem"),
    GuestHelper(
        "array_map_lookup_elem",
        """
    mov eax, dword ptr [rsi]
    cmp eax, dword ptr [rdi + bpf_map.max_entries]
    jae array_map_lookup_elem_none
    mov edx, dword ptr [rdi + bpf_array.elem_size]
    and eax, dword ptr [rdi + bpf_array.index_mask]
    imul rax, rdx
    lea rax, [rdi + rax + bpf_array.value]
    ret
array_map_lookup_elem_none:
    xor eax, eax
    ret
""",
    ),
    GuestHelper(
        "percpu_array_map_lookup_elem",
        """
    mov eax, dword ptr [rsi]
    cmp eax, dword ptr [rdi + bpf_map.max_entries]
    jae percpu_array_map_lookup_elem_none
    mov rax, qword ptr [rdi + rax*8 + bpf_array.pptrs]
    add rax, qword ptr gs:[percpu.this_cpu_off]
    ret
percpu_array_map_lookup_elem_none:
    xor eax, eax
    ret
""",
    ),
    GuestHelper(
        "array_of_map_lookup_elem",
        """
    call array_map_lookup_elem
    test rax, rax
    je array_of_map_lookup_elem_none
    mov rax, qword ptr [rax]                       ; the inner map
array_of_map_lookup_elem_none:
    ret
""",
    ),
    GuestHelper("__htab_map_lookup_elem", LOOKUP_ELEMENT),
    _hash_lookup("htab_map_lookup_elem"),
    _hash_lookup("htab_lru_map_lookup_elem", lru=True),
    _hash_lookup("htab_percpu_map_lookup_elem", percpu=True),
    _hash_lookup("htab_lru_percpu_map_lookup_elem", lru=True, percpu=True),
    _percpu_elem("percpu_array_map_lookup_percpu_elem", "array"),
    _percpu_elem("htab_percpu_map_lookup_percpu_elem", "hash"),
    _percpu_elem("htab_lru_percpu_map_lookup_percpu_elem", "hash", lru=True),
)


def _update(call: HelperCall, address: int, key: int, value: int, flags: int) -> int:
    found = call.runtime.maps.at(address)
    spec = found.spec
    found.update_elem(call.read(key, spec.key_size), call.read(value, spec.value_size), flags, call.vcpu.index)
    return 0


def _delete(call: HelperCall, address: int, key: int) -> int:
    found = call.runtime.maps.at(address)
    found.delete_elem(call.read(key, found.spec.key_size))
    return 0


def _python(function: Callable[..., int], arguments: int, *names: str) -> tuple[PythonHelper, ...]:
    return tuple(PythonHelper(name, function, arguments) for name in names)


HELPERS: tuple[Helper, ...] = (
    *_GUEST,
    *_python(
        _update, 4, "array_map_update_elem", "htab_map_update_elem", "htab_percpu_map_update_elem",
        "htab_lru_map_update_elem", "htab_lru_percpu_map_update_elem",
    ),
    *_python(_delete, 2, "array_map_delete_elem", "htab_map_delete_elem", "htab_lru_map_delete_elem"),
)  # fmt: skip
