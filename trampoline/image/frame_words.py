"""What the words of a per-function trampoline's frame are called, by the layout that the generator chose."""

from emu.machine.frame_words import StackNames
from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.structs import bpf_tramp_run_ctx
from trampoline.image.generator import TrampFlag, TrampLinks, Trampoline
from trampoline.rules import TrampolineRules

WORD = 8
RBP = -16
"""Where rbp points: the saved rbp, below the return address."""


def frame_names(rules: TrampolineRules, made: Trampoline, model: FuncModel, links: TrampLinks) -> StackNames:
    """Names of a trampoline's words.

    Arguments are counted by slots, from 1: ``arg1`` is the first word that programs see.
    """
    frame, flags = made.frame, made.flags
    found = {RBP: "saved rbp"}
    slots = [in_regs for _, in_regs in _slots(model)]
    if flags & (TrampFlag.CALL_ORIG | TrampFlag.RET_FENTRY_RET):
        found[RBP - WORD] = "return value"
    for number in range(len(slots)):
        found[RBP - frame.regs_off + WORD * number] = f"arg{number + 1}"
    found[RBP - frame.nregs_off] = "nr_args"
    if flags & TrampFlag.IP_ARG:
        found[RBP - frame.ip_off] = "ip"
    sessions = [call for call in links.fentry if call.session_cookie]
    for number, call in enumerate(sessions):
        found[RBP - frame.cookie_off + WORD * number] = f"session cookie of {call.name}"
    below = RBP - frame.size
    if flags & TrampFlag.TAIL_CALL_CTX:
        below -= WORD
        found[below] = "tail_call_cnt"
    found[below - WORD if rules.saves_rbx_by_push else RBP - frame.rbx_off] = "saved rbx"
    run_ctx = RBP - frame.run_ctx_off
    found[run_ctx + bpf_tramp_run_ctx.offset("bpf_cookie")] = "run_ctx.cookie"
    found[run_ctx + bpf_tramp_run_ctx.offset("saved_run_ctx")] = "run_ctx.saved_run_ctx"
    incoming = 0 if made.by_jmp else WORD
    stack = [number for number, in_regs in enumerate(slots) if not in_regs]
    for position, number in enumerate(stack):
        found[incoming + WORD * position] = f"arg{number + 1} of the caller"
        if flags & TrampFlag.CALL_ORIG:
            found[RBP - frame.size + WORD * position] = f"arg{number + 1} of the original"
    if stack and not made.by_jmp:
        found[0] = "return address of the traced function"
    return StackNames(found)


def _slots(model: FuncModel) -> list[tuple[int, bool]]:
    placement = zip(model.args, model.placement(), strict=True)
    return [(first + word, in_regs) for arg, (first, in_regs) in placement for word in range(arg.slots)]
