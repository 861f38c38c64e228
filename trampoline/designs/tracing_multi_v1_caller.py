"""The global caller of the posted series' first version: one stub in assembly for every traced function.

It always saves and restores all six argument registers, and runs programs between the kernel's own
``__bpf_prog_enter*`` and ``__bpf_prog_exit*``, called out of line. Metadata is found through the function's padding.
The series' call that rebalances the CPU's return stack buffer is omitted: its code is not known.

::

    rsp  +0x00 run_ctx   +0x10 rbx   +0x18 rbp   +0x20 r12   +0x28 r13   +0x30 r14
         +0x38 ctx[-2]: the function      +0x40 ctx[-1]: number of arguments
         +0x48 args[0] to args[5]; args[nr_args]: the return value, for six arguments at +0x78
         +0x80 return address into the function
"""

from emu.kernel.config import Config
from emu.kernel.routines.percpu_ref import percpu_ref_get, percpu_ref_put
from emu.kernel.routines.routine import Routine, body
from trampoline.bpf.structs import SLEEPABLE, bpf_tramp_run_ctx
from trampoline.image.generator import ARG_REGISTERS
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.lookup import Entered

NAME = "bpf_global_caller"
_KEPT = {"rbx": 0x10, "rbp": 0x18, "r12": 0x20, "r13": 0x28, "r14": 0x30}
SIX_ARGUMENTS = "return value of six arguments"
"""Name of the return value's word for six arguments; with fewer it follows the last argument."""
_IP, _COUNT, _ARGS, _FRAME = 0x38, 0x40, 0x48, 0x80


def routines(config: Config, backend: MetadataBackend) -> list[Routine]:
    """The stub and its callees. KernelError -EOPNOTSUPP if functions have no padding."""
    look = backend.lookup(Entered("rdi"), label="kfunc_md_get_noref", missing="kfunc_md_get_noref_none", checked=True)
    get = percpu_ref_get(config, "rdi", "kfunc_md.pcref", "kfunc_md_enter")
    put = percpu_ref_put(config, "rdi", "kfunc_md.pcref", "kfunc_md_exit")
    none = "    ret\nkfunc_md_get_noref_none:\n    xor eax, eax\n    ret"
    return [
        Routine("kfunc_md_get_noref", body(".phase lookup", look, none)),
        Routine("kfunc_md_enter", body(".phase origin", get.text, "    ret", get.cold)),
        Routine("kfunc_md_exit", body(".phase origin", put.text, "    ret", put.cold)),
        Routine(NAME, _stub(), stack=_words()),
    ]


def _words() -> dict[int, str]:
    """Names of the stub's stack words, by distance in bytes from the address after its return address."""
    found = {at: f"saved {register}" for register, at in _KEPT.items()}
    found |= {_ARGS + 8 * slot: f"arg{slot + 1}" for slot in range(len(ARG_REGISTERS))}
    found |= {_IP: "ip", _COUNT: "nr_args", _FRAME - 8: SIX_ARGUMENTS}
    found |= {bpf_tramp_run_ctx.offset("bpf_cookie"): "run_ctx.cookie"}
    found |= {bpf_tramp_run_ctx.offset("saved_run_ctx"): "run_ctx.saved_run_ctx"}
    return {at - _FRAME - 8: name for at, name in found.items()}


def _moves(form: str, places: dict[str, int]) -> str:
    return "\n".join(f"    mov {form.format(register=register, at=at)}" for register, at in places.items())


def _stub() -> str:
    """Code of the stub. rbx: list node, rbp: metadata, r12: start time, r13: address of the return value, r14:
    bpf_origin_call.
    """
    save, restore = "[rsp + {at:#x}], {register}", "{register}, [rsp + {at:#x}]"
    args = {register: _ARGS + 8 * slot for slot, register in enumerate(ARG_REGISTERS)}
    cold: list[str] = []
    fentry, fmod_ret, fexit = (
        _programs(kind, place, cold) for place, kind in ((0, "fentry"), (2, "fmod_ret"), (1, "fexit"))
    )
    return body(
        f"""
.phase entry
    sub rsp, {_FRAME:#x}
.phase save
{_moves(save, args)}
{_moves(save, _KEPT)}
.phase lookup
    mov rdi, [rsp + {_FRAME:#x}]
    and rdi, -16                                   ; the function
    mov [rsp + {_IP:#x}], rdi                      ; ctx[-2]: bpf_get_func_ip()
    call kfunc_md_get_noref
    test rax, rax
    je {NAME}_continue                             ; the last program was detached meanwhile
    mov rbp, rax
.phase save
    movzx eax, byte ptr [rbp + kfunc_md.nr_args]
    mov [rsp + {_COUNT:#x}], rax                   ; ctx[-1]: number of arguments
    lea r13, [rsp + rax*8 + {_ARGS:#x}]
.phase origin
    movzx r14d, byte ptr [rbp + kfunc_md.bpf_origin_call]
    test r14d, r14d
    je {NAME}_unheld
    mov rdi, rbp
    call kfunc_md_enter
{NAME}_unheld:
""",
        fentry,
        f"""
.phase origin
    test r14d, r14d
    je {NAME}_continue
.phase save
    mov qword ptr [r13], 0                         ; a skipped program counts as 0
""",
        fmod_ret,
        f"""
.phase origin
{_moves(restore, args)}
    mov rax, [rsp + {_FRAME:#x}]                   ; the function's body, after the site
    call rax
    mov [r13], rax
{NAME}_fexit:
""",
        fexit,
        f"""
.phase origin
    mov rdi, rbp
    call kfunc_md_exit
.phase restore
    mov rax, [r13]
{_moves(restore, _KEPT)}
.phase leave
    add rsp, {_FRAME + 8:#x}                       ; drops the return address into the function
    ret
.phase restore
{NAME}_continue:
{_moves(restore, _KEPT)}
{_moves(restore, args)}
.phase leave
    add rsp, {_FRAME:#x}
    ret                                            ; on into the function
""",
        *cold,
    )


def _programs(kind: str, place: int, cold: list[str]) -> str:
    label = f"{NAME}_{kind}"
    cold.append(
        f"""
.phase enter
{label}_sleepable:
    call __bpf_prog_enter_sleepable_recur
    jmp {label}_entered
.phase exit
{label}_wake:
    call __bpf_prog_exit_sleepable_recur
    jmp {label}_left
"""
    )
    keep, stop = "", ""
    if kind == "fmod_ret":
        keep = "    mov [r13], rax"
        stop = f"    cmp qword ptr [r13], 0\n    jne {NAME}_fexit"
    return f"""
.phase enter
    mov rbx, [rbp + kfunc_md.bpf_progs + {8 * place}]
    test rbx, rbx
    je {label}_none
{label}_next:
    mov rdi, [rbx + kfunc_md_tramp_prog.cookie]
    mov [rsp + bpf_tramp_run_ctx.bpf_cookie], rdi
    mov rdi, [rbx + kfunc_md_tramp_prog.prog]
    mov rsi, rsp                                   ; run_ctx
    test byte ptr [rdi + bpf_prog.sleepable], {SLEEPABLE:#x}
    jne {label}_sleepable
    call __bpf_prog_enter_recur
{label}_entered:
    mov r12, rax
    test rax, rax
    je {label}_skip
.phase program
    mov rax, [rbx + kfunc_md_tramp_prog.prog]
    lea rdi, [rsp + {_ARGS:#x}]                    ; the context
    mov rax, [rax + bpf_prog.bpf_func]
    call rax
{keep}
.phase exit
{label}_skip:
    mov rdi, [rbx + kfunc_md_tramp_prog.prog]
    mov rsi, r12
    mov rdx, rsp
    test byte ptr [rdi + bpf_prog.sleepable], {SLEEPABLE:#x}
    jne {label}_wake
    call __bpf_prog_exit_recur
{label}_left:
{stop}
    mov rbx, [rbx + kfunc_md_tramp_prog.next]
    test rbx, rbx
    jne {label}_next
{label}_none:
"""
