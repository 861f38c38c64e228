"""Helpers that call a function of the program repeatedly (kernel/bpf/bpf_iter.c, arraymap.c, hashtab.c)."""

from errno import E2BIG, EINVAL

from trampoline.bpf.helpers.runtime.definition import GuestHelper, Helper

BPF_MAX_LOOPS = 8 << 20

_SAVE = "    push rbx\n    push rbp\n    push r12\n    push r13\n    push r14"
_RESTORE = "    pop r14\n    pop r13\n    pop r12\n    pop rbp\n    pop rbx\n    ret"

_LOOP = f"""
    test rcx, rcx
    jne bpf_loop_flags
    cmp edi, {BPF_MAX_LOOPS}
    ja bpf_loop_many
{_SAVE}
    mov r12d, edi                                  ; nr_loops
    mov rbp, rsi                                   ; callback_fn
    mov r13, rdx                                   ; callback_ctx
    xor ebx, ebx
bpf_loop_next:
    cmp ebx, r12d
    jae bpf_loop_done
    mov edi, ebx
    mov rsi, r13
    xor edx, edx
    xor ecx, ecx
    xor r8d, r8d
    call rbp
    add ebx, 1
    test rax, rax                                  ; other than 0: no more
    je bpf_loop_next
bpf_loop_done:
    mov eax, ebx
{_RESTORE}
bpf_loop_flags:
    mov rax, {-EINVAL}
    ret
bpf_loop_many:
    mov rax, {-E2BIG}
    ret
"""

_ARRAY = f"""
    test rcx, rcx
    jne bpf_for_each_array_elem_flags
{_SAVE}
    sub rsp, 8                                     ; the key
    mov rbp, rdi                                   ; map
    mov r12, rsi                                   ; callback_fn
    mov r13, rdx                                   ; callback_ctx
    xor ebx, ebx
    lea r14, [rdi + bpf_array.value]
bpf_for_each_array_elem_next:
    cmp ebx, dword ptr [rbp + bpf_map.max_entries]
    jae bpf_for_each_array_elem_done
    mov dword ptr [rsp], ebx
    mov rdx, r14
    mov eax, dword ptr [rbp + bpf_array.elem_size]
    cmp dword ptr [rbp + bpf_map.map_type], 6      ; BPF_MAP_TYPE_PERCPU_ARRAY
    jne bpf_for_each_array_elem_value
    mov rdx, qword ptr [r14]
    add rdx, qword ptr gs:[percpu.this_cpu_off]
    mov eax, 8
bpf_for_each_array_elem_value:
    add r14, rax
    mov rdi, rbp
    mov rsi, rsp
    mov rcx, r13
    xor r8d, r8d
    call r12
    add ebx, 1
    test rax, rax
    je bpf_for_each_array_elem_next
bpf_for_each_array_elem_done:
    mov eax, ebx
    add rsp, 8
{_RESTORE}
bpf_for_each_array_elem_flags:
    mov rax, {-EINVAL}
    ret
"""

_HASH = f"""
    test rcx, rcx
    jne bpf_for_each_hash_elem_flags
{_SAVE}
    push r15
    sub rsp, 16                                    ; number of calls, current bucket
    mov rbp, rdi                                   ; map
    mov r12, rsi                                   ; callback_fn
    mov r13, rdx                                   ; callback_ctx
    mov r15d, dword ptr [rdi + bpf_map.key_size]
    add r15d, 7
    and r15d, -8
    xor eax, eax
    mov qword ptr [rsp], rax
    mov qword ptr [rsp + 8], rax
bpf_for_each_hash_elem_bucket:
    mov rax, qword ptr [rsp + 8]
    cmp eax, dword ptr [rbp + bpf_htab.n_buckets]
    jae bpf_for_each_hash_elem_done
    add qword ptr [rsp + 8], 1
    shl rax, 4
    add rax, qword ptr [rbp + bpf_htab.buckets]
    mov rbx, qword ptr [rax + bucket.first]
bpf_for_each_hash_elem_next:
    test bl, 1
    jne bpf_for_each_hash_elem_bucket
    mov r14, qword ptr [rbx + htab_elem.next]      ; the callback may delete this one
    lea rsi, [rbx + htab_elem.sizeof]
    lea rdx, [rsi + r15]
    mov eax, dword ptr [rbp + bpf_map.map_type]
    cmp eax, 5                                     ; BPF_MAP_TYPE_PERCPU_HASH
    je bpf_for_each_hash_elem_percpu
    cmp eax, 10                                    ; BPF_MAP_TYPE_LRU_PERCPU_HASH
    jne bpf_for_each_hash_elem_value
bpf_for_each_hash_elem_percpu:
    mov rdx, qword ptr [rdx]
    add rdx, qword ptr gs:[percpu.this_cpu_off]
bpf_for_each_hash_elem_value:
    mov rdi, rbp
    mov rcx, r13
    xor r8d, r8d
    call r12
    add dword ptr [rsp], 1
    mov rbx, r14
    test rax, rax
    je bpf_for_each_hash_elem_next
bpf_for_each_hash_elem_done:
    mov eax, dword ptr [rsp]
    add rsp, 16
    pop r15
{_RESTORE}
bpf_for_each_hash_elem_flags:
    mov rax, {-EINVAL}
    ret
"""

_FOR_EACH = """
    mov rax, qword ptr [rdi + bpf_map.ops]
    mov rax, qword ptr [rax + bpf_map_ops.map_for_each_callback]
    jmp rax
"""

_ITER_NEW = f"""
    cmp esi, edx
    jg bpf_iter_num_new_none
    movsxd rax, edx
    movsxd rcx, esi
    sub rax, rcx
    cmp rax, {BPF_MAX_LOOPS}
    jg bpf_iter_num_new_many
    sub esi, 1                                     ; bpf_iter_num_next() steps first
    mov dword ptr [rdi], esi
    mov dword ptr [rdi + 4], edx
    xor eax, eax
    ret
bpf_iter_num_new_none:
    mov qword ptr [rdi], 0
    mov eax, {-EINVAL}
    ret
bpf_iter_num_new_many:
    mov qword ptr [rdi], 0
    mov eax, {-E2BIG}
    ret
"""

_ITER_NEXT = """
    movsxd rax, dword ptr [rdi]
    add rax, 1
    movsxd rcx, dword ptr [rdi + 4]
    cmp rax, rcx
    jge bpf_iter_num_next_none
    mov dword ptr [rdi], eax
    mov rax, rdi
    ret
bpf_iter_num_next_none:
    mov qword ptr [rdi], 0
    xor eax, eax
    ret
"""

HELPERS: tuple[Helper, ...] = (
    GuestHelper("bpf_loop", _LOOP),
    GuestHelper("bpf_for_each_map_elem", _FOR_EACH),
    GuestHelper("bpf_for_each_array_elem", _ARRAY),
    GuestHelper("bpf_for_each_hash_elem", _HASH),
    GuestHelper("bpf_iter_num_new", _ITER_NEW),
    GuestHelper("bpf_iter_num_next", _ITER_NEXT),
    GuestHelper("bpf_iter_num_destroy", "    mov qword ptr [rdi], 0\n    ret\n"),
)
