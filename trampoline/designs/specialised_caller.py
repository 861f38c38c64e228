"""Assembly template of a caller of the ``specialised`` design: one image for all functions with the same programs and
the same argument locations.

It calls its programs directly, without a list, and omits what none of them uses. The return address of the call at the
patch site identifies the function::

    R+8+8k  arguments on the stack           R       return address into the function; later the return value
    R+8     return address of the caller     below   the programs' context: arguments, count, ip
"""

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field

from emu.kernel.config import Config
from emu.kernel.routines.routine import Fragment
from trampoline.bpf.boot import Boot
from trampoline.bpf.ctx_words import COOKIE_INDEX_SHIFT, SESSION_IS_RETURN
from trampoline.designs.rcu_section import CURRENT, LOAD_CURRENT, enter_section, leave_section
from trampoline.designs.specialised_spec import CallerProg, CallerSpec
from trampoline.image.generator import ARG_REGISTERS
from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.lookup import Entered, LookupRegisters

WORD = 8
WORD_LABEL = ".Lword"
"""Prefix of the labels of pushes; a number, a dot and the word's name follow."""
_BPF_CTX = f"qword ptr [{CURRENT} + task_struct.bpf_ctx]"
_IMM32 = range(-(1 << 31), 1 << 31)


@dataclass(slots=True)
class _Frame:
    """Distances of pushed words below R, in bytes; ``depth``: that of rsp."""

    depth: int = 0
    at: dict[str, int] = field(default_factory=dict)

    def push(self, name: str = "") -> None:
        self.depth += WORD
        if name:
            self.at[name] = self.depth

    def __getitem__(self, name: str) -> str:
        return self.address(self.at[name])

    def address(self, below: int) -> str:
        """Memory operand of the word ``below`` bytes below R."""
        offset = self.depth - below
        return f"[rsp + {offset:#x}]" if offset else "[rsp]"


def caller_text(
    spec: CallerSpec,
    config: Config,
    boot: Boot,
    *,
    refs: int = 0,
    backend: MetadataBackend | None = None,
    cookies: int = 0,
) -> str:
    """Assembly text of a caller. A released image is patched at its label ``ip_after_call`` (8 bytes) to jump to
    ``ip_epilogue``.

    ``refs``: per-CPU address of the count of tasks in the image. ``backend``: metadata back end of the cookie records;
    ``cookies``: offset of the cookies in a record, in bytes.
    """
    return "\n".join(_Template(spec, config, boot, refs, backend, cookies).lines())


class _Template:
    def __init__(
        self, spec: CallerSpec, config: Config, boot: Boot, refs: int, backend: MetadataBackend | None, cookies: int
    ) -> None:
        self._spec, self._config, self._boot = spec, config, boot
        self._refs, self._backend, self._cookies = refs, backend, cookies
        self._frame = _Frame()
        self._cold: list[str] = []
        self._numbers = iter(range(1 << 16))
        self._pushes = 0
        self._cookie_now: tuple[int, int | None] | None = None
        self._word = 0
        self._record_in_rax = False
        uses = [prog.uses for prog in spec.progs]
        self._sees_ip = any(use.func_ip for use in uses)
        self._sees_count = self._sees_ip or any(use.arg_cnt or use.session_cookie for use in uses)
        self._sleeps = any(prog.sleepable for prog in spec.progs)
        self._session = any(prog.is_session for prog in spec.progs)
        self._early_run_ctx = not spec.calls_original and any(use.run_ctx for use in uses)
        """True if current->bpf_ctx is saved above the arguments, to be popped last."""

    def lines(self) -> Iterator[str]:
        """Lines of the whole text, with rarely executed code at the end."""
        spec = self._spec
        yield ".phase entry"
        if not spec.thunk:
            yield from self._account("the call at the site")
        yield ".phase save"
        yield from self._save()
        if self._spec.looks_up:
            yield from self._look_up()
        if self._sleeps:
            yield self._count("inc")
        yield from self._group(spec.fentry, spec.fmod_ret, is_exit=False)
        if spec.calls_original:
            yield from self._call_original()
            if spec.fexit:
                yield "do_fexit:"
                yield from self._session_returns()
                yield from self._group(spec.fexit, (), is_exit=True)
            yield from self._leave_to_caller()
        else:
            yield from self._leave_to_function()
        yield from self._cold

    # Frame ------------------------------------------------------------------------------------------------------------

    def _push(self, operand: str, comment: str = "", name: str = "", *, word: str = "") -> str:
        """Pushes an operand and records its place under ``name``; ``word``: the word's name for debuggers, if
        different.
        """
        line = f"push {operand}" + (f" ; {comment}" if comment else "")
        self._frame.push(name)
        word = word or name
        if not word:
            return line
        self._pushes += 1
        return f"{WORD_LABEL}{self._pushes}.{word}: {line}"

    def _save(self) -> Iterator[str]:
        spec, frame = self._spec, self._frame
        if self._early_run_ctx:
            yield LOAD_CURRENT
            yield self._push(_BPF_CTX, "saved_run_ctx", "saved")
        frame.at["ret"] = 0
        if spec.fmod_ret or self._session:
            yield self._push("0", "the return value, until there is one", "ret")
        for number, (in_regs, place) in reversed(list(enumerate(spec.places, 1))):
            if in_regs:
                yield self._push(ARG_REGISTERS[place], word=f"arg{number}")
                continue
            incoming = f"qword ptr [rsp + {frame.depth + 2 * WORD + WORD * place:#x}]"
            yield self._push(incoming, "on the caller's stack", word=f"arg{number}")
            if spec.narrow:
                yield "mov dword ptr [rsp + 4], 0 ; upper half of a 4-byte stack argument"
        frame.at["ctx"] = frame.depth
        self._word = len(spec.places)
        if self._sees_count:
            yield self._push(f"{self._word}", "ctx[-1]: number of argument slots", "count")
        if self._sees_ip or spec.looks_up:
            yield from self._function_address()
        for number, prog in enumerate(self._session_cookies):
            yield self._push("0", f"bpf_session_cookie of {prog.name}", f"session{number}")

    def _function_address(self) -> Iterator[str]:
        """Pushes the function's address for programs, and leaves it in r10 for the look-up."""
        spec, frame = self._spec, self._frame
        if spec.ip is not None:
            yield f"mov rax, {spec.ip:#x} ; the traced function"
            yield self._push("rax", "ctx[-2]: bpf_get_func_ip()", "ip")
        elif spec.thunk:
            if self._sees_ip:
                yield self._push("r10", "ctx[-2]: bpf_get_func_ip()", "ip")
        elif spec.looks_up:
            yield f"mov r10, {frame.address(0)}"
            yield "and r10, -16 ; the function: sites stand in its first 16 bytes"
            if self._sees_ip:
                yield self._push("r10", "ctx[-2]: bpf_get_func_ip()", "ip")
        else:
            yield self._push(f"qword ptr {frame.address(0)}", "ctx[-2]: bpf_get_func_ip()", "ip")
            yield "and qword ptr [rsp], -16 ; sites stand in the first 16 bytes of their functions"

    def _look_up(self) -> Iterator[str]:
        """Reads the cookies while Tasks RCU still waits for this code, that is, before it can sleep."""
        spec = self._spec
        clobbered: Collection[str] = ()
        if not spec.thunk:
            clobbered = yield from self._find_record()
        first = self._first_run_ctx(spec.fentry + spec.fmod_ret)
        wanted = {prog.slot: prog.name for prog in spec.progs if prog.slot is not None and prog.uses.run_ctx}
        for slot, name in wanted.items():
            alone = first is not None and slot == first.slot
            if alone and sum(prog.slot == slot for prog in spec.progs) == 1:
                self._record_in_rax = True
                continue
            cookie = f"qword ptr [rax + {self._cookies + WORD * slot:#x}]"
            yield self._push(cookie, f"cookie of {name}", f"cookie{slot}")
        if spec.calls_original and not (spec.fentry or spec.fmod_ret):
            yield from self._load_args(clobbered)

    def _find_record(self) -> Generator[str, None, Collection[str]]:
        """Loads the record's address into rax; returns the argument registers that it clobbers."""
        spec, frame = self._spec, self._frame
        assert self._backend is not None
        # Saved argument registers may be clobbered, unless the original is called with them unchanged.
        scratch = CURRENT if spec.calls_original else "rdx"
        yield from self._backend.lookup(
            Entered("r10"),
            label=".Lrecord",
            missing="not_traced",
            registers=LookupRegisters(out="rax", key="r10", scratch=scratch),
        ).splitlines()
        clobbered = {"rcx", scratch} if self._backend.name == "hash" else set()
        self._cold += ["not_traced:", ".phase leave", *self._load_args(clobbered)]
        self._cold += [f"add rsp, {frame.depth:#x} ; as if nothing was attached", *self._ret()]
        return clobbered

    @staticmethod
    def _first_run_ctx(progs: tuple[CallerProg, ...]) -> CallerProg | None:
        return next((prog for prog in progs if prog.uses.run_ctx), None)

    @property
    def _session_cookies(self) -> tuple[CallerProg, ...]:
        return tuple(prog for prog in self._spec.fentry if prog.is_session and prog.uses.session_cookie)

    # Programs ---------------------------------------------------------------------------------------------------------

    def _group(
        self, first: tuple[CallerProg, ...], modifying: tuple[CallerProg, ...], *, is_exit: bool
    ) -> Iterator[str]:
        """Code of the programs before or after the original: current->bpf_ctx is set once around all of them."""
        progs = first + modifying
        if not progs:
            return
        run_ctx = self._first_run_ctx(progs)
        if run_ctx is not None:
            yield from self._set_run_ctx(run_ctx)
        sections: list[list[CallerProg]] = []
        for prog in progs:
            if sections and sections[-1][0].sleepable == prog.sleepable:
                sections[-1].append(prog)
            else:
                sections.append([prog])
        done = 0
        for section in sections:
            label = f".Lsection{next(self._numbers)}"
            sleepable = section[0].sleepable
            loaded = run_ctx is not None and not done
            yield ".phase enter"
            yield from self._fragment(enter_section(self._config, label, sleepable=sleepable, loaded=loaded))
            for prog in section:
                modifies = done >= len(first)
                yield from self._invoke(prog, f"{label}_modified" if modifies else "", is_exit=is_exit)
                done += 1
            depth = self._frame.depth
            if done > len(first):
                self._cold += self._modified(label, sleepable, run_ctx is not None)
                self._frame.depth = depth
            yield from self._leave_section(label, sleepable)
        if run_ctx is not None and not self._early_run_ctx:
            yield from self._reset_run_ctx()

    def _leave_section(self, label: str, sleepable: bool) -> Iterator[str]:
        yield ".phase exit"
        account = list(self._account("the next call"))
        yield from self._fragment(leave_section(self._config, label, sleepable=sleepable, account=account))

    def _fragment(self, fragment: Fragment) -> list[str]:
        self._cold += fragment.cold.splitlines()
        return fragment.text.splitlines()

    def _set_run_ctx(self, prog: CallerProg) -> Iterator[str]:
        """Sets one bpf_tramp_run_ctx for the group, whose programs don't nest; its cookie is changed between programs.
        """
        yield ".phase enter"
        if not self._early_run_ctx:
            yield LOAD_CURRENT
            yield self._push(_BPF_CTX, "saved_run_ctx", "saved")
        if prog.slot is None:
            if prog.cookie in _IMM32:
                yield self._push(f"{prog.cookie:#x}", "bpf_cookie", "run_ctx")
            else:
                yield f"movabs rax, {prog.cookie:#x}"
                yield self._push("rax", "bpf_cookie", "run_ctx")
        elif self._record_in_rax:
            yield self._push(f"qword ptr [rax + {self._cookies + WORD * prog.slot:#x}]", "bpf_cookie", "run_ctx")
        else:
            yield self._push(f"qword ptr {self._frame[f'cookie{prog.slot}']}", "bpf_cookie", "run_ctx")
        self._record_in_rax = False
        self._cookie_now = prog.cookie, prog.slot
        yield f"mov {_BPF_CTX}, rsp ; bpf_set_run_ctx()"

    def _reset_run_ctx(self) -> Iterator[str]:
        yield ".phase exit"
        yield LOAD_CURRENT
        yield "add rsp, 8 ; bpf_cookie"
        yield f"pop {_BPF_CTX} ; bpf_reset_run_ctx()"
        self._frame.depth -= 2 * WORD

    def _set_cookie(self, prog: CallerProg) -> Iterator[str]:
        if not prog.uses.run_ctx or self._cookie_now == (prog.cookie, prog.slot):
            return
        self._cookie_now = prog.cookie, prog.slot
        where = f"qword ptr {self._frame['run_ctx']}"
        if prog.slot is None and prog.cookie in _IMM32:
            yield f"mov {where}, {prog.cookie:#x} ; cookie of {prog.name}"
            return
        if prog.slot is None:
            yield f"movabs rax, {prog.cookie:#x}"
        else:
            yield f"mov rax, {self._frame[f'cookie{prog.slot}']}"
        yield f"mov {where}, rax ; cookie of {prog.name}"

    def _invoke(self, prog: CallerProg, modified: str, *, is_exit: bool) -> Iterator[str]:
        number, frame = next(self._numbers), self._frame
        timed = self._spec.stats and prog.timed
        yield ".phase enter"
        yield from self._session_word(prog, is_exit=is_exit)
        yield from self._set_cookie(prog)
        if prog.guarded:
            yield f"bts dword ptr gs:[{prog.active:#x}], 0 ; prog->active of {prog.name}"
            yield f"jb .Lrecursion{number}"
        if timed:
            yield from self._call("sched_clock")
            yield self._push("rax", "start time", word="start")
        yield ".phase program"
        below = frame.depth - frame.at["ctx"]
        yield f"lea rdi, [rsp + {below:#x}] ; the context" if below else "mov rdi, rsp ; the context"
        yield from self._call(f"{prog.bpf_func:#x}", prog.name)
        yield ".phase exit"
        if modified:
            yield f"mov {frame['ret']}, rax ; the return value"
        if timed:
            yield from self._call("sched_clock")
            yield "pop rcx"
            frame.depth -= WORD
            yield "sub rax, rcx"
            yield f"add qword ptr gs:[{prog.stats:#x} + bpf_prog_stats.nsecs], rax"
            yield f"inc qword ptr gs:[{prog.stats:#x} + bpf_prog_stats.cnt]"
        if prog.guarded:
            yield f"dec dword ptr gs:[{prog.active:#x}]"
        if modified:
            yield f"cmp qword ptr {frame['ret']}, 0"
            yield f"jne {modified} ; a non-zero return value skips the original"
        if prog.guarded:
            yield f".Lskip{number}:"
            self._cold += self._recursion(prog, number)

    def _recursion(self, prog: CallerProg, number: int) -> list[str]:
        """Code of bpf_prog_inc_misses_counter() and recursion_detected(); a skipped program counts as returning 0."""
        return [
            f".Lrecursion{number}:",
            ".phase enter",
            f"inc qword ptr gs:[{prog.stats:#x} + bpf_prog_stats.misses]",
            f"movabs rdi, {prog.prog:#x}",
            "mov rax, [rdi + bpf_prog.aux]",
            "mov rax, [rax + bpf_prog_aux.recursion_detected]",
            "test rax, rax",
            f"je .Lskip{number}",
            *self._account("the next call"),
            "call rax",
            f"jmp .Lskip{number}",
        ]

    def _modified(self, label: str, sleepable: bool, run_ctx: bool) -> list[str]:
        """Code after a program's non-zero result, which replaces the original's: leaves the section, then runs fexit
        programs.
        """
        lines = [f"{label}_modified:", *self._leave_section(f"{label}m", sleepable)]
        if run_ctx:
            lines += self._reset_run_ctx()
        if self._spec.fexit:
            if outgoing := self._outgoing():
                lines.append(f"sub rsp, {outgoing:#x} ; size of the original's stack arguments")
            return [*lines, "jmp do_fexit"]
        return [*lines, *self._leave_to_caller()]

    # The original -----------------------------------------------------------------------------------------------------

    def _outgoing(self) -> int:
        """Bytes of the original's arguments on the stack, which stay there, with alignment."""
        stack = WORD * sum(not in_regs for in_regs, _ in self._spec.places)
        # rsp must be 16-byte aligned at the call of a function that takes arguments on the stack.
        return stack + (WORD if stack and (self._frame.depth + stack + WORD) % 16 == 0 else 0)

    def _call_original(self) -> Iterator[str]:
        spec, frame = self._spec, self._frame
        yield ".phase origin"
        if spec.fentry or spec.fmod_ret:
            yield from self._load_args()
        stack = sum(not in_regs for in_regs, _ in spec.places)
        if self._outgoing() > WORD * stack:
            yield "sub rsp, 8"
            frame.depth += WORD
        for number in reversed(range(stack)):
            incoming = f"qword ptr [rsp + {frame.depth + 2 * WORD + WORD * number:#x}]"
            yield self._push(incoming, "argument on the stack", word=f"outgoing{number + 1}")
        if not self._sleeps:
            yield self._count("inc")
        yield from self._account("the original")
        yield f"call qword ptr {frame.address(0)} ; the function, or its livepatch"
        if not self._sleeps:
            yield self._count("dec")
        yield "ip_after_call:"
        yield f"{{disp32}} mov {frame['ret']}, rax ; a jump to ip_epilogue once the image is released"
        self._cold += ["ip_epilogue:", ".phase leave"]
        if self._sleeps:
            self._cold.append(self._count("dec"))
        self._cold += [f"add rsp, {frame.depth + WORD:#x}", *self._ret()]

    def _load_args(self, registers: Collection[str] = ARG_REGISTERS) -> Iterator[str]:
        """Reloads argument registers from the programs' context."""
        for position, (in_regs, place) in enumerate(self._spec.places):
            if in_regs and ARG_REGISTERS[place] in registers:
                yield f"mov {ARG_REGISTERS[place]}, {self._frame.address(self._frame.at['ctx'] - WORD * position)}"

    def _session_returns(self) -> Iterator[str]:
        if self._session:
            self._word = len(self._spec.places) | SESSION_IS_RETURN
            yield ".phase exit"
            yield from self._store_word("from here on bpf_session_is_return() is true")

    def _session_word(self, prog: CallerProg, *, is_exit: bool) -> Iterator[str]:
        if not prog.is_session or not prog.uses.session_cookie:
            return
        cookies = self._session_cookies
        index = (self._frame.at[f"session{cookies.index(_as_entry(prog, cookies))}"] - self._frame.at["ctx"]) // WORD
        word = len(self._spec.places) | index << COOKIE_INDEX_SHIFT | (SESSION_IS_RETURN if is_exit else 0)
        if word != self._word:
            self._word = word
            yield from self._store_word(f"session cookie of {prog.name}")

    def _store_word(self, comment: str) -> Iterator[str]:
        if not self._sees_count:
            return
        if self._word in _IMM32:
            yield f"mov qword ptr {self._frame['count']}, {self._word:#x} ; {comment}"
        else:
            yield f"movabs rax, {self._word:#x} ; {comment}"
            yield f"mov {self._frame['count']}, rax"

    # Out --------------------------------------------------------------------------------------------------------------

    def _leave_to_caller(self) -> Iterator[str]:
        yield ".phase leave"
        if self._sleeps:
            yield self._count("dec")
        yield f"mov rax, {self._frame['ret']}"
        yield f"add rsp, {self._frame.depth + WORD:#x} ; with the return address into the function"
        yield from self._ret()

    def _leave_to_function(self) -> Iterator[str]:
        spec, frame = self._spec, self._frame
        yield ".phase restore"
        if self._sleeps:
            yield self._count("dec")
        if self._early_run_ctx:
            yield LOAD_CURRENT
        if frame.depth > frame.at["ctx"]:
            yield f"add rsp, {frame.depth - frame.at['ctx']:#x}"
            frame.depth = frame.at["ctx"]
        places = list(spec.places)
        while places and places[0][0]:
            yield f"pop {ARG_REGISTERS[places.pop(0)[1]]}"
            frame.depth -= WORD
        for position, (in_regs, place) in enumerate(places):
            if in_regs:
                yield f"mov {ARG_REGISTERS[place]}, [rsp + {WORD * position:#x}]"
        if places:
            yield f"add rsp, {WORD * len(places):#x}"
            frame.depth -= WORD * len(places)
        if self._early_run_ctx:
            yield f"pop {_BPF_CTX} ; bpf_reset_run_ctx()"
        yield ".phase leave"
        yield from self._ret()

    def _ret(self) -> list[str]:
        if self._boot.return_thunk is not None:
            return [f"{{disp32}} jmp {self._boot.return_thunk:#x} ; the return thunk"]
        return ["ret", "int3"]

    def _count(self, how: str) -> str:
        return f"{how} qword ptr gs:[{self._refs:#x}] ; tasks that are in this image"

    def _call(self, target: str, what: str = "") -> Iterator[str]:
        yield from self._account("the next call")
        yield f"call {target}" + (f" ; {what}" if what else "")

    def _account(self, what: str) -> Iterator[str]:
        if self._boot.call_depth_offset is not None:
            yield f"sar qword ptr gs:[rip + {self._boot.call_depth_offset:#x}], 5 ; call depth of {what}"


def _as_entry(prog: CallerProg, cookies: tuple[CallerProg, ...]) -> CallerProg:
    """The entry-list item of a session program: entry and exit share its session cookie."""
    return next(other for other in cookies if other.prog == prog.prog and other.cookie == prog.cookie)
