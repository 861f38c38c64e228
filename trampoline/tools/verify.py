"""Verdict of a kernel on the programs of a file: ``tramp verify``."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emu.kernel.text.selftest_functions import NR_ARGS_FUNCTIONS, TEST_FUNCTIONS, TESTMOD_FUNCTIONS
from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.declarations import with_declarations
from trampoline.bpf.btf.writer import without_functions
from trampoline.bpf.errors import TrampolineError, errno_name
from trampoline.bpf.isa.parse import parse
from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.bpf.objects.section_names import section_kind, target_prefix
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.attach_requests import (
    KprobeMulti,
    LinkCreate,
    PerfKprobe,
    PerfTracepoint,
    RawTracepointOpen,
    Request,
)
from trampoline.bpf.verifier.errors import Unsupported, VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.load.bpf_link_create import Links
from trampoline.bpf.verifier.load.bpf_prog_load import bpf_prog_load
from trampoline.bpf.verifier.load.links.link import LinkRules
from trampoline.releases import release

_MULTI_PROBES = (AttachType.TRACE_KPROBE_MULTI, AttachType.TRACE_KPROBE_SESSION)


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """A kernel's verdict on a program: ``accepted``, ``load_refused``, ``attach_refused``, or ``unsupported`` if
    verifier-lite has no answer.
    """

    program: str
    outcome: str
    errno: int = 0
    message: str = ""
    log: str = ""

    @property
    def accepted(self) -> bool:
        """True if it is loaded and, if requested, attached."""
        return self.outcome == "accepted"

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values; ``errno`` by number and name."""
        return asdict(self) | {"errname": errno_name(self.errno) if self.errno else None}

    def __str__(self) -> str:
        outcome = self.outcome.replace("_", " ")
        errno = f" (-{errno_name(self.errno)})" if self.errno else ""
        return f"{self.program}: {outcome}{errno}" + (f": {self.message}" if self.message else "")


def view(name: str, btf: Path | None) -> KernelView:
    """The kernel of a release with this BTF, or without one with the synthetic kernel's functions. TrampolineError."""
    return KernelView(release(name).verifier, _synthetic() if btf is None else Btf.read(btf))


def _synthetic() -> Btf:
    functions = TEST_FUNCTIONS + NR_ARGS_FUNCTIONS + TESTMOD_FUNCTIONS
    return with_declarations(without_functions(), [function.prototype for function in functions])


def programs_of_object(path: Path, kernel: KernelView, name: str | None = None) -> tuple[BpfProgram, ...]:
    """The programs of clang's object, or the named one. Raises ObjectError."""
    opened = BpfObject.open(path)
    return opened.resolve(kernel.btf, names=None if name is None else [name])


def programs_of_text(path: Path, kernel: KernelView, section: str, license: str = "GPL") -> tuple[BpfProgram, ...]:
    """The program of a file of eBPF text, with the type and the target of a section with this name.

    Raises BytecodeSyntaxError, ObjectError for the section, and TrampolineError where the kernel has no such target.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TrampolineError(f"{path} is no text") from None
    kind = section_kind(section)
    program = BpfProgram(
        name="".join(c if c.isascii() and c.isalnum() else "_" for c in path.stem)[:15],
        insns=parse(text),
        prog_type=kind.prog_type,
        attach=kind.attach,
        license=license,
        flags=int(kind.flags),
        attach_btf_id=_target_id(kernel.btf, kind.attach, kind.target),
        section=section,
        target=kind.target,
    )
    return (program,)


def _target_id(btf: Btf, attach: AttachType, target: str) -> int:
    prefix = target_prefix(attach)
    if prefix is None or not target:
        return 0
    name = prefix + target
    if attach == AttachType.TRACE_RAW_TP:
        found = next((type_id for type_id in btf.of_kind(BtfKind.TYPEDEF) if btf.type(type_id).name == name), 0)
    else:
        found = next((func.id for func in btf.functions_named(name)), 0)
    if not found:
        raise TrampolineError(f"the kernel's BTF has no {name}: --kernel-btf names another")
    return found


def verify(
    program: BpfProgram, kernel: KernelView, *, attach: LinkRules | None = None, verbose: bool = False
) -> KernelVerdict:
    """Loads a program. ``attach``: attaches it to its section's target too, under these rules of the same release;
    ``verbose``: the log has all paths.
    """
    try:
        loaded = bpf_prog_load(program, kernel, log_level=2 if verbose else 1)
    except VerifierError as error:
        return KernelVerdict(program.name, "load_refused", error.errno, error.summary, error.log)
    except Unsupported as error:
        return KernelVerdict(program.name, "unsupported", message=str(error), log=error.log)
    log = loaded.verified.log
    if attach is not None:
        try:
            Links(kernel, attach).attach(loaded, _request(program))
        except VerifierError as error:
            return KernelVerdict(program.name, "attach_refused", error.errno, error.summary, log)
        except Unsupported as error:
            return KernelVerdict(program.name, "unsupported", message=str(error), log=log)
    return KernelVerdict(program.name, "accepted", log=log)


def _request(program: BpfProgram) -> Request:
    """The attach request that libbpf makes for a program of this type and its section's target."""
    match program.prog_type:
        case ProgType.RAW_TRACEPOINT | ProgType.RAW_TRACEPOINT_WRITABLE:
            return RawTracepointOpen(program.target or None)
        case ProgType.TRACEPOINT:
            system, _, name = program.target.partition("/")
            return PerfTracepoint(system, name)
        case ProgType.KPROBE if program.attach in _MULTI_PROBES:
            return KprobeMulti((program.target,))
        case ProgType.KPROBE:
            symbol, _, offset = program.target.partition("+")
            try:
                distance = int(offset or "0", 0)
            except ValueError:
                raise TrampolineError(f"{program.target!r} is not a function and an offset") from None
            return PerfKprobe(symbol, distance, retprobe=program.section.startswith(("kretprobe", "kretsyscall")))
    return LinkCreate()
