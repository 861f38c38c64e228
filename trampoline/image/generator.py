"""The per-function trampoline as machine code: ``arch_prepare_bpf_trampoline`` of arch/x86/net/bpf_jit_comp.c.

One template for every rules. It reads top to bottom like the listing; its comments and phases reach the listing.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import E2BIG
from functools import cache

from asm import Image, assemble
from emu.kernel.text.entry import SITE_SIZE
from emu.machine.address_map import PAGE_SIZE
from trampoline.bpf.boot import Boot
from trampoline.bpf.btf.func_model import MAX_REG_SLOTS, FuncModel
from trampoline.bpf.ctx_words import COOKIE_INDEX_SHIFT, SESSION_IS_RETURN
from trampoline.bpf.errors import ENOTSUPP, KernelError
from trampoline.phases import check_phases
from trampoline.rules import TrampolineRules

ARG_REGISTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
RUN_CTX_SIZE = 16
HAS_CALL_THUNK = frozenset({"__bpf_prog_enter_sleepable_recur", "__bpf_prog_exit_sleepable_recur"})
"""Callees that account for a call in their own padding: the kernel calls them itself (kern_sys_bpf), so its boot-time
call
patching put the accounting there (``is_callthunk`` in arch/x86/kernel/callthunks.c), and the emitter leaves it out."""


class TrampFlag(enum.IntFlag):
    """``BPF_TRAMP_F_*`` of include/linux/bpf.h."""

    RESTORE_REGS = 1 << 0
    CALL_ORIG = 1 << 1
    SKIP_FRAME = 1 << 2
    IP_ARG = 1 << 3
    RET_FENTRY_RET = 1 << 4
    ORIG_STACK = 1 << 5
    SHARE_IPMODIFY = 1 << 6
    TAIL_CALL_CTX = 1 << 7


@dataclass(frozen=True, slots=True)
class ProgCall:
    """One program as the generator sees it (``struct bpf_tramp_link`` with its program)."""

    name: str
    prog: int
    """Guest address of its struct bpf_prog."""
    bpf_func: int
    """Guest address of its machine code."""
    cookie: int = 0
    enter: str = "__bpf_prog_enter_recur"
    exit: str = "__bpf_prog_exit_recur"
    is_session: bool = False
    session_cookie: bool = False
    """An fsession program that asks for its cookie."""


@dataclass(frozen=True, slots=True)
class TrampLinks:
    """Programs in the order in which they run; an fsession program stands in ``fentry`` and in ``fexit``."""

    fentry: tuple[ProgCall, ...] = ()
    fmod_ret: tuple[ProgCall, ...] = ()
    fexit: tuple[ProgCall, ...] = ()

    @property
    def calls(self) -> tuple[ProgCall, ...]:
        """All of them, in the order in which the trampoline calls them."""
        return self.fentry + self.fmod_ret + self.fexit

    @property
    def call_original(self) -> bool:
        """Whether a program runs when the original has returned, or in its place."""
        return bool(self.fexit or self.fmod_ret)

    @property
    def has_session(self) -> bool:
        """Whether an fsession program is among them."""
        return any(call.is_session for call in self.fentry)

    @property
    def session_cookies(self) -> int:
        """How many fsession programs have a cookie slot."""
        return sum(call.session_cookie for call in self.fentry)


@dataclass(frozen=True, slots=True)
class TrampFrame:
    """Layout of the stack frame: each ``*_off`` is the distance below rbp in bytes; arguments grow upwards from
    ``regs_off``.
    """

    regs_off: int
    nregs_off: int
    ip_off: int
    cookie_off: int
    rbx_off: int
    run_ctx_off: int
    size: int

    @classmethod
    def of(cls, rules: TrampolineRules, model: FuncModel, flags: TrampFlag, session_cookies: int = 0) -> "TrampFrame":
        """The layout that ``__arch_prepare_bpf_trampoline`` chooses."""
        saves_return = bool(flags & (TrampFlag.CALL_ORIG | TrampFlag.RET_FENTRY_RET))
        regs_off = 8 * saves_return + 8 * model.nr_regs
        nregs_off = regs_off + 8
        ip_off = nregs_off + (8 if flags & TrampFlag.IP_ARG else 0)
        cookie_off = ip_off + 8 * session_cookies
        rbx_off = cookie_off + (0 if rules.saves_rbx_by_push else 8)
        size = run_ctx_off = rbx_off + RUN_CTX_SIZE
        if model.nr_regs > MAX_REG_SLOTS and flags & TrampFlag.CALL_ORIG:
            size += 8 * model.nr_stack_slots
            # rsp must be 16-byte aligned at the call of the original, return addresses counted.
            if (size % 16 == 0) != uses_jmp(rules, flags):
                size += 8
        return cls(regs_off, nregs_off, ip_off, cookie_off, rbx_off, run_ctx_off, size)


@dataclass(frozen=True, slots=True)
class Skip:
    """``bpf_tramp_image.skips``: the nop before a program and where a jump patched there goes."""

    prog: int
    nop: int
    target: int


@dataclass(frozen=True, slots=True)
class Trampoline:
    """A generated image with the addresses at which it is patched later."""

    image: Image
    flags: TrampFlag
    frame: TrampFrame
    ip_after_call: int | None
    ip_epilogue: int | None
    skips: tuple[Skip, ...]
    by_jmp: bool = False
    """Whether the site jumps to it."""


@cache
def uses_jmp(rules: TrampolineRules, flags: TrampFlag) -> bool:
    """Whether the site reaches this trampoline by jmp (``bpf_trampoline_use_jmp``)."""
    return rules.jmp_sites and bool(flags & TrampFlag.CALL_ORIG) and not flags & TrampFlag.SKIP_FRAME


def origin_body(rules: TrampolineRules, func_addr: int, site_offset: int | None) -> int:
    """Where a trampoline calls the original function: behind its patch site."""
    return func_addr + (rules.entry.site_offset if site_offset is None else site_offset) + SITE_SIZE


def arch_prepare_bpf_trampoline(
    rules: TrampolineRules,
    boot: Boot,
    model: FuncModel,
    flags: TrampFlag,
    links: TrampLinks,
    *,
    func_addr: int | None,
    address: int,
    im: int,
    symbols: Mapping[str, int],
    site_offset: int | None = None,
) -> Trampoline:
    """Generate the trampoline of the function at ``func_addr`` for ``address``.

    ``im`` is the guest address of its struct bpf_tramp_image, ``symbols`` the callees' addresses, ``site_offset``
    where the function's patch site is, if not where the rules has it (compilers leave endbr64 out of some statics).
    ``func_addr`` None: for any function, which the return address at the site tells; ORIG_STACK must be set.
    Raises KernelError with -ENOTSUPP for a model that the rules can't take, -E2BIG for more than a page,
    asm.DisplacementError (-ERANGE) where a callee is out of reach.
    """
    model.check()
    if model.nr_regs > MAX_REG_SLOTS and not rules.stack_args:
        raise KernelError(
            ENOTSUPP, f"{model.name} needs {model.nr_regs} argument slots; this kernel passes {MAX_REG_SLOTS}"
        )
    body = origin_body(rules, func_addr or 0, site_offset)
    template = _Template(rules, boot, model, flags, links, func_addr, body, im)
    name = f"bpf_trampoline of {model.name}"
    image = assemble(check_phases("\n".join(template.lines()), name), address, symbols, name=name)
    if len(image) > PAGE_SIZE:
        raise KernelError(E2BIG, f"the trampoline of {model.name} needs {len(image)} bytes; at most {PAGE_SIZE}")
    where = image.symbols
    skips = tuple(Skip(call.prog, where[f".Lnop{i}"], where[f".Ldone{i}"]) for i, call in enumerate(links.calls))
    return Trampoline(
        image,
        flags,
        TrampFrame.of(rules, model, flags, links.session_cookies),
        where.get("ip_after_call"),
        where.get("ip_epilogue"),
        skips if rules.skip_nops else (),
        uses_jmp(rules, flags),
    )


class _Template:
    """The text of one trampoline, section by section."""

    def __init__(
        self,
        rules: TrampolineRules,
        boot: Boot,
        model: FuncModel,
        flags: TrampFlag,
        links: TrampLinks,
        func_addr: int | None,
        body: int,
        im: int,
    ) -> None:
        self._rules, self._boot, self._model, self._flags, self._links = rules, boot, model, flags, links
        self._func_addr, self._body, self._im = func_addr, body, im
        self._frame = TrampFrame.of(rules, model, flags, links.session_cookies)
        self._jmp = uses_jmp(rules, flags)
        self._programs = 0

    def lines(self) -> Iterator[str]:
        """The whole template."""
        flags, links = self._flags, self._links
        yield from self._enter_frame()
        yield from self._save_registers()
        if flags & TrampFlag.CALL_ORIG:
            yield ".phase origin"
            yield from self._call_with_image("__bpf_tramp_enter")
        if links.has_session:
            yield from self._clear_session()
        save_fentry = bool(flags & TrampFlag.RET_FENTRY_RET)
        yield from self._programs_of(links.fentry, self._model.nr_regs, save_return=save_fentry)
        if links.fmod_ret:
            yield from self._modify_return()
        if flags & TrampFlag.CALL_ORIG:
            yield from self._call_original()
        if links.fmod_ret:
            yield f".align 16, {self._rules.longest_nop}"
            yield "do_fexit:"
        count = self._model.nr_regs
        if links.has_session:
            count |= SESSION_IS_RETURN
            yield ".phase exit"
            yield from self._store_imm(self._frame.nregs_off, count, "from here on bpf_session_is_return() is true")
        yield from self._programs_of(links.fexit, count)
        yield from self._leave()

    def _enter_frame(self) -> Iterator[str]:
        yield ".phase entry"
        yield from self._account("the call at the site")
        yield "push rbp"
        yield "mov rbp, rsp"
        yield f"sub rsp, {self._frame.size:#x}"
        if self._flags & TrampFlag.TAIL_CALL_CTX:
            yield "push rax ; tail_call_cnt of the BPF program that is traced"

    def _save_registers(self) -> Iterator[str]:
        frame = self._frame
        yield ".phase save"
        if self._rules.saves_rbx_by_push:
            yield "push rbx"
        else:
            yield f"mov [rbp - {frame.rbx_off:#x}], rbx"
        yield from self._store_imm(frame.nregs_off, self._model.nr_regs, "ctx[-1]: number of argument slots")
        if self._flags & TrampFlag.IP_ARG:
            yield from self._store_ip(frame.ip_off)
        yield from self._save_args(frame.regs_off)

    def _store_ip(self, offset: int) -> Iterator[str]:
        if self._func_addr is not None:
            yield from self._store_imm(offset, self._func_addr, "ctx[-2]: bpf_get_func_ip()")
            return
        yield "mov rax, [rbp + 0x8]"
        yield f"sub rax, {self._body:#x} ; ctx[-2]: bpf_get_func_ip()"
        yield f"mov [rbp - {offset:#x}], rax"

    def _save_args(self, offset: int, *, for_origin: bool = False) -> Iterator[str]:
        """Arguments into the frame, from ``offset`` upwards; for the original call only those that it gets on the
        stack.
        """
        incoming = 0x10 if self._jmp else 0x18
        stack_slots = 0
        last_stack = offset
        for arg, (first, in_regs) in zip(self._model.args, self._model.placement(), strict=True):
            for word in range(arg.slots):
                if in_regs:
                    if not for_origin:
                        yield f"mov [rbp - {offset:#x}], {ARG_REGISTERS[first + word]} ; {arg.name}"
                        offset -= 8
                    continue
                if not stack_slots:
                    last_stack = offset
                yield f"mov rax, [rbp + {incoming + 8 * stack_slots:#x}] ; {arg.name}, on the caller's stack"
                yield f"mov [rbp - {offset:#x}], rax"
                offset -= 8
                stack_slots += 1
        # A lone stack argument may have been pushed as 4 bytes: its upper half is garbage. The kernel looks at the
        # size of
        # the *last* argument, whichever one is on the stack (clean_stack_garbage).
        if stack_slots == 1 and self._model.args[-1].size <= 4:
            yield f"mov dword ptr [rbp - {last_stack - 4:#x}], 0 ; upper half of a 4-byte stack argument"

    def _restore_args(self) -> Iterator[str]:
        offset = self._frame.regs_off
        for arg, (first, in_regs) in zip(self._model.args, self._model.placement(), strict=True):
            for word in range(arg.slots):
                if in_regs:
                    yield f"mov {ARG_REGISTERS[first + word]}, [rbp - {offset:#x}] ; {arg.name}"
                offset -= 8

    def _clear_session(self) -> Iterator[str]:
        frame = self._frame
        yield ".phase save"
        for slot in range(self._links.session_cookies):
            yield from self._store_imm(frame.cookie_off - 8 * slot, 0, "bpf_session_cookie")
        yield from self._store_imm(8, 0, "fsession programs read 0 as return value on the way in")

    def _programs_of(self, calls: tuple[ProgCall, ...], count: int, *, save_return: bool = False) -> Iterator[str]:
        cookie = (self._frame.cookie_off - self._frame.regs_off) // 8
        for call in calls:
            if call.session_cookie:
                yield ".phase enter"
                word = count | cookie << COOKIE_INDEX_SHIFT
                yield from self._store_imm(self._frame.nregs_off, word, f"where {call.name} finds its cookie")
                cookie -= 1
            yield from self._invoke(call, save_return=save_return)

    def _modify_return(self) -> Iterator[str]:
        yield ".phase save"
        yield from self._store_imm(8, 0, "a program that is skipped counts as 0")
        for call in self._links.fmod_ret:
            yield from self._invoke(call, save_return=True)
            yield "cmp qword ptr [rbp - 0x8], 0"
            yield "{disp32} jne do_fexit ; a non-zero return value skips the original"

    def _invoke(self, call: ProgCall, *, save_return: bool) -> Iterator[str]:
        """One program between its enter and exit functions (``invoke_bpf_prog``)."""
        number = self._programs
        self._programs += 1
        run_ctx = self._frame.run_ctx_off
        yield ".phase enter"
        yield f".Lnop{number}:"
        if self._rules.skip_nops:
            yield "nop5 ; a jump past this program once it is detached"
        yield from self._mov_imm64("rdi", call.cookie, f"cookie of {call.name}")
        yield f"mov [rbp - {run_ctx:#x}], rdi"
        yield from self._mov_imm64("rdi", call.prog, f"struct bpf_prog of {call.name}")
        yield f"lea rsi, [rbp - {run_ctx:#x}]"
        yield from self._call(call.enter)
        yield "mov rbx, rax ; start time, or 0: skip the program"
        yield "test rax, rax"
        yield f"je .Lskip{number}"
        yield ".phase program"
        yield f"lea rdi, [rbp - {self._frame.regs_off:#x}] ; the context"
        yield from self._call(f"{call.bpf_func:#x}", call.name)
        if save_return:
            yield "mov [rbp - 0x8], rax"
        yield ".phase exit"
        yield f".Lskip{number}:"
        yield from self._mov_imm64("rdi", call.prog, f"struct bpf_prog of {call.name}")
        yield "mov rsi, rbx"
        yield f"lea rdx, [rbp - {run_ctx:#x}]"
        yield from self._call(call.exit)
        yield f".Ldone{number}:"

    def _call_original(self) -> Iterator[str]:
        frame, flags = self._frame, self._flags
        yield ".phase origin"
        yield from self._restore_args()
        yield from self._save_args(frame.size, for_origin=True)
        if flags & TrampFlag.TAIL_CALL_CTX:
            yield from self._load_tail_call_count()
        if flags & TrampFlag.ORIG_STACK:
            yield "mov rbx, [rbp + 0x8] ; where livepatch wants the original to go on"
            yield "call rbx"
        else:
            yield from self._call(f"{self._body:#x}", f"{self._model.name}, behind its patch site")
        yield "mov [rbp - 0x8], rax ; the return value"
        if not self._rules.skip_nops:
            yield "ip_after_call:"
            yield "nop5 ; a jump to ip_epilogue once the image is released"

    def _leave(self) -> Iterator[str]:
        frame, flags = self._frame, self._flags
        yield ".phase restore"
        if flags & TrampFlag.RESTORE_REGS:
            yield from self._restore_args()
        if flags & TrampFlag.CALL_ORIG:
            if not self._rules.skip_nops:
                yield "ip_epilogue:"
            yield ".phase origin"
            yield from self._call_with_image("__bpf_tramp_exit")
            yield ".phase restore"
        elif flags & TrampFlag.TAIL_CALL_CTX:
            yield from self._load_tail_call_count()
        if flags & (TrampFlag.CALL_ORIG | TrampFlag.RET_FENTRY_RET):
            yield "mov rax, [rbp - 0x8]"
        yield "pop rbx" if self._rules.saves_rbx_by_push else f"mov rbx, [rbp - {frame.rbx_off:#x}]"
        yield ".phase leave"
        yield "leave"
        if flags & TrampFlag.SKIP_FRAME:
            yield "add rsp, 8 ; drop the return address into the traced function"
        if self._boot.return_thunk is not None:
            yield f"{{disp32}} jmp {self._boot.return_thunk:#x} ; the return thunk"
        else:
            yield "ret"
            if self._rules.sls:
                yield "int3 ; straight-line speculation stops here"

    def _call_with_image(self, callee: str) -> Iterator[str]:
        yield from self._mov_imm64("rdi", self._im, "struct bpf_tramp_image")
        yield from self._call(callee)

    def _call(self, target: str, what: str = "") -> Iterator[str]:
        if target not in HAS_CALL_THUNK:
            yield from self._account("the next call")
        yield f"call {target}" + (f" ; {what}" if what else "")

    def _account(self, what: str) -> Iterator[str]:
        if self._boot.call_depth_offset is not None:
            yield f"sar qword ptr gs:[rip + {self._boot.call_depth_offset:#x}], 5 ; call depth of {what}"

    def _load_tail_call_count(self) -> Iterator[str]:
        yield f"{{disp32}} mov rax, [rbp - {self._frame.size + 8:#x}] ; tail_call_cnt"

    def _store_imm(self, offset: int, value: int, comment: str) -> Iterator[str]:
        yield from self._mov_imm64("rax", value, comment)
        yield f"mov [rbp - {offset:#x}], rax"

    def _mov_imm64(self, register: str, value: int, comment: str) -> Iterator[str]:
        """The form that ``emit_mov_imm64`` takes for a value."""
        half = "e" + register[1:]
        if value == 0:
            yield f"xor {half}, {half} ; {comment}"
        elif value < 1 << 32:
            yield f"mov {half}, {value:#x} ; {comment}"
        elif self._rules.sign_extended_imm and value >= (1 << 64) - (1 << 31):
            yield f"mov {register}, {value:#x} ; {comment}"
        else:
            yield f"movabs {register}, {value:#x} ; {comment}"
