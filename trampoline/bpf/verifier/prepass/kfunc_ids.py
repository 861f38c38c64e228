"""Kernel functions that a program calls: checked before the walk."""

from errno import E2BIG

from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.errors import BtfError
from trampoline.bpf.helpers.kfuncs import Kf, kfuncs
from trampoline.bpf.isa.insn import CALL, CallKind
from trampoline.bpf.verifier.access.pointers import is_gpl
from trampoline.bpf.verifier.state.env import Env

_MAX_KFUNCS = 256


def check_kfunc_ids(env: Env) -> None:
    """Check calls before the walk (``add_kfunc_call``): refuses ids that are not functions of this kernel, and calls
    from programs whose licence is not GPL-compatible.
    """
    known: set[int] = set()
    for slot, insn in enumerate(env.insns):
        if insn is None or insn.code != CALL or insn.src != CallKind.KFUNC:
            continue
        env.slot = slot
        if not is_gpl(env):
            env.invalid("cannot call kernel function from non-GPL compatible program")
        if insn.imm == 0 and insn.off == 0:
            # Refused later, unless it is dead code.
            continue
        if insn.off < 0:
            env.invalid("negative offset disallowed for kernel module function call")
        if insn.off > 0:
            env.unsupported("functions of modules")
        if insn.imm not in known and len(known) == _MAX_KFUNCS:
            env.refuse(E2BIG, "too many different kernel function calls")
        known.add(insn.imm)
        try:
            kind = env.kernel.btf.type(insn.imm)
        except BtfError:
            kind = env.kernel.btf.type(0)
        if kind.kind is not BtfKind.FUNC:
            env.invalid(f"kernel btf_id {insn.imm & 0xFFFFFFFF} is not a function")
        kfunc = kfuncs(env.kernel.rules.version).get(kind.name)
        if kfunc is not None and kfunc.has(Kf.ITER_NEXT):
            env.force_checkpoints.add(slot)
