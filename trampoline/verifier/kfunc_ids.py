"""Which kernel functions a program calls: checked before anything is walked."""

from errno import E2BIG

from trampoline.bpf.insn import CALL, CallKind
from trampoline.btf import Kind as BtfKind
from trampoline.errors import BtfError
from trampoline.verifier.env import Env
from trampoline.verifier.pointers import is_gpl

_MAX_KFUNCS = 256


def check_kfunc_ids(env: Env) -> None:
    """Before the walk (``add_kfunc_call``): refuses calls of what is no function of this kernel, and calls from programs
    whose licence is not the GPL.
    """
    known: set[int] = set()
    for slot, insn in enumerate(env.insns):
        if insn is None or insn.code != CALL or insn.src != CallKind.KFUNC:
            continue
        env.slot = slot
        if not is_gpl(env):
            env.invalid("cannot call kernel function from non-GPL compatible program")
        if insn.imm == 0 and insn.off == 0:
            # Refused only where it is not dead code.
            continue
        if insn.off < 0:
            env.invalid("negative offset disallowed for kernel module function call")
        if insn.off > 0:
            env.unsupported("functions of modules")
        if insn.imm not in known and len(known) == _MAX_KFUNCS:
            env.refuse(E2BIG, "too many different kernel function calls")
        known.add(insn.imm)
        try:
            is_function = env.kernel.btf.type(insn.imm).kind is BtfKind.FUNC
        except BtfError:
            is_function = False
        if not is_function:
            env.invalid(f"kernel btf_id {insn.imm & 0xFFFFFFFF} is not a function")
