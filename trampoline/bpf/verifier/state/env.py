"""The state of one verification: the program, facts about it, the current path, and the log."""

from dataclasses import dataclass
from errno import E2BIG, EACCES, EINVAL
from typing import NamedTuple, NoReturn

from trampoline.bpf.isa.insn import Insn
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import ProgFlag
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.rules.engine_rules import EngineRules
from trampoline.bpf.verifier.state.result import InsnFacts, SubprogFacts
from trampoline.bpf.verifier.state.state import NOT_INIT, UNKNOWN_REG, FuncFrame, Reg, VerifierState
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget
from trampoline.bpf.verifier.values.kinds import RegKind
from trampoline.bpf.verifier.values.type_names import type_name


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the loading task. CAP_SYS_ADMIN implies all of them."""

    bpf: bool = True
    perfmon: bool = True
    net_admin: bool = True

    @property
    def ptr_leaks(self) -> bool:
        """``bpf_allow_ptr_leaks``: pointers may be stored where user space can read them."""
        return self.perfmon

    @property
    def uninit_stack(self) -> bool:
        """``bpf_allow_uninit_stack``."""
        return self.perfmon


MAX_PENDING = 8192
"""BPF_COMPLEXITY_LIMIT_JMP_SEQ."""


class Pending(NamedTuple):
    """A path not walked yet."""

    state: VerifierState
    slot: int
    from_slot: int
    log_length: int


class Env:
    """``struct bpf_verifier_env``. Positions are slots of 8 bytes, as in the kernel's log.

    The check functions take it as their first argument, read and change ``env.frame`` and ``env.state``, and call
    ``env.refuse`` or ``env.unsupported`` to end verification.
    """

    def __init__(
        self,
        program: BpfProgram,
        kernel: KernelView,
        target: AttachTarget | None = None,
        capabilities: Capabilities | None = None,
        log_level: int = 2,
    ) -> None:
        self.program = program
        self.kernel = kernel
        self.rules: EngineRules = kernel.rules.engine
        self.target = target
        self.capabilities = capabilities or Capabilities()
        self.log_level = log_level
        self.log: list[str] = []
        self.insns: list[Insn | None] = []
        """By slot; None for the second slot of LD_IMM64."""
        for insn in program.insns:
            self.insns.append(insn)
            if insn.slots == 2:
                self.insns.append(None)
        self.facts = [InsnFacts() for _ in self.insns]
        """By slot."""
        self.subprogs: list[SubprogFacts] = []
        self.subprog_at: dict[int, int] = {}
        """Number of the function that starts at a slot."""
        self.subprog_types: list[int] = []
        """BTF type id (FUNC) of each function; empty without func_info."""
        self.maps: list[MapSpec] = []
        """Maps used so far, in the order of their first use."""
        self.slot = 0
        self.state: VerifierState = VerifierState(FuncFrame(0, 0, -1))
        self.frame: FuncFrame = self.state.frames[0]
        """The innermost frame of ``state``. A function that pushes a frame keeps the old one in a variable."""
        self.strict_alignment = bool(program.flags & ProgFlag.STRICT_ALIGNMENT)
        self.processed = 0
        self.next_slot = 0
        """Next slot of the path: the following one by default, changed by jumps."""
        self.pending: list[Pending] = []
        """Paths not walked yet, the next one last."""
        self.entered_callback: FuncFrame | None = None
        """A callback's frame, entered when the call has been checked."""
        self.callback_slots: set[int] = set()
        """Slots of calls with a callback."""
        self.force_checkpoints: set[int] = set()
        """Slots of calls of an iterator's next, and of may_goto: their states are always kept."""
        self.may_gotos: set[int] = set()
        self.pointer_kinds: dict[int, RegKind] = {}
        """Kind of the base of a load or store when it was first walked."""
        self.checked_fields = bytearray(len(self.insns))
        self.texts: dict[int, str] = {}
        """Lines of the log by slot."""
        self.line_at = {line.slot: line for line in program.lines}
        self.async_entries: dict[int, int] = {}
        self.called_globals: set[int] = set()
        """Global functions that some path calls, and that must be verified themselves."""
        self.last_id = 0
        # Facts about the whole program, for Verified.
        self.uses: set[str] = set()
        """Names of fields of ``Uses`` that are true."""
        self.accessed_args: set[int] = set()
        self.accesses_ret = False
        self.max_ctx_offset = 0

    # Registers

    def reg(self, n: int) -> Reg:
        """Register ``n`` of the innermost frame."""
        return self.frame.regs[n]

    def set_reg(self, n: int, reg: Reg) -> None:
        """Set register ``n`` of the innermost frame."""
        self.frame.regs[n] = reg

    def mark_unknown(self, n: int) -> None:
        """Make register ``n`` an unknown number (``mark_reg_unknown``)."""
        self.frame.regs[n] = UNKNOWN_REG

    def mark_not_init(self, n: int) -> None:
        """Make register ``n`` unreadable (``mark_reg_not_init``)."""
        self.frame.regs[n] = NOT_INIT

    def read(self, n: int) -> Reg:
        """Register ``n``, read by an instruction (``check_reg_arg`` with SRC_OP)."""
        reg = self.frame.regs[n]
        if reg.kind is RegKind.NOT_INIT:
            self.refuse(EACCES, f"R{n} !read_ok")
        return reg

    def check_writable(self, n: int) -> None:
        """Refuse an instruction whose destination is the frame pointer (``check_reg_arg`` with DST_OP)."""
        if n == 10:
            self.refuse(EACCES, "frame pointer is read only")

    def new_id(self) -> int:
        """A new id, not used by any register."""
        self.last_id += 1
        return self.last_id

    @property
    def fact(self) -> InsnFacts:
        """Facts about the current instruction."""
        return self.facts[self.slot]

    def use_map(self, spec: MapSpec) -> None:
        """Record that the program uses this map."""
        if not any(spec is used for used in self.maps):
            self.maps.append(spec)

    # Paths

    def push_branch(self, slot: int) -> VerifierState:
        """A copy of the current path, to be walked later from ``slot`` on; the caller applies its differences."""
        other = self.state.copy()
        if other.parent is not None:
            other.parent.branches += 1
        self.pending.append(Pending(other, slot, self.slot, len(self.log)))
        if len(self.pending) > MAX_PENDING:
            self.refuse(E2BIG, f"The sequence of {len(self.pending)} jumps is too complex.")
        return other

    # Log

    def type_name(self, reg: Reg) -> str:
        """Name of a register's type in this release's messages."""
        return type_name(reg.kind, reg.flags, self.kernel.rules.calls.ringbuf_word)

    def say(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(text)

    def refuse(self, errno: int, message: str) -> NoReturn:
        """End verification: raises VerifierError with the kernel's errno (positive) and the log's decisive line."""
        if message:
            self.log.append(message)
        raise VerifierError(errno, message, self.slot, self.final_log())

    def invalid(self, message: str) -> NoReturn:
        """``refuse`` with EINVAL."""
        self.refuse(EINVAL, message)

    def denied(self, message: str) -> NoReturn:
        """``refuse`` with EACCES."""
        self.refuse(EACCES, message)

    def unsupported(self, feature: str) -> NoReturn:
        """End verification: raises Unsupported, as verifier-lite does not model ``feature``."""
        raise Unsupported(feature, self.slot, self.final_log())

    def final_log(self) -> str:
        """The log so far with its last line."""
        count = f"processed {self.processed} insns (limit 1000000)" if self.processed else ""
        return "\n".join([*self.log, count] if count else self.log) + "\n"
