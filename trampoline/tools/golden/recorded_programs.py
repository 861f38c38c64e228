"""Recorded programs verified, rewritten and compiled from their loaded bytes, and compared with the kernel's code.

Other inputs from the recording are addresses only: of the map slot, of kernel functions, of the image.
"""

from collections.abc import Iterator
from dataclasses import replace

from trampoline.bpf.btf.btf import Btf, BtfKind
from trampoline.bpf.btf.writer import BtfWriter
from trampoline.bpf.errors import GoldenError, KernelError, TrampolineError
from trampoline.bpf.isa.codec import decode
from trampoline.bpf.isa.insn import LD_IMM64, Imm64, Insn
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.jit_image import JitImage
from trampoline.bpf.jit.rules import JitBoot
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.rewrite.environment import Environment
from trampoline.bpf.rewrite.rewrite import rewrite
from trampoline.bpf.uapi import AttachType, MapType, ProgType
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.state.result import Verified
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget, check_attach_btf_id
from trampoline.bpf.verifier.walk.bpf_check import bpf_check
from trampoline.releases.kernel_release import KernelRelease
from trampoline.tools.golden.trampoline_case import Case, RecordedProgram
from trampoline.tools.golden.trampoline_images import Difference, first_difference

_SLOTS = MapSpec("slots", MapType.ARRAY, 4, 1 << 16, 1)
"""The array that the recorded programs write to; its size is not recorded."""
_CALL_BASE = (1 << 64) - (1 << 31)
"""Text base for compilation; any base within reach of the whole kernel serves, since code contains displacements."""


class ProgramKernel:
    """A release that programs are verified against. Results are cached, since recordings repeat programs."""

    def __init__(self, release: KernelRelease, btf: Btf) -> None:
        self.release, self.view = release, KernelView(release.verifier, btf)
        self._verified: dict[tuple[object, ...], Verified] = {}

    def verified(self, program: BpfProgram, traced: AttachTarget | None) -> Verified:
        """Verify a program; ``traced``: its target if that is a BPF program.

        Raises VerifierError or Unsupported if it is rejected here.
        """
        if traced is not None:
            return bpf_check(program, self.view, traced, log_level=0)
        key = (program.insns, program.prog_type, program.attach, program.flags, program.attach_btf_id)
        if key not in self._verified:
            target = check_attach_btf_id(program, self.view)
            self._verified[key] = bpf_check(program, self.view, target, log_level=0)
        return self._verified[key]


def compiled_programs(case: Case) -> list[RecordedProgram]:
    """The programs of a case that the kernel compiled and whose eBPF is recorded."""
    return [program for program in case.programs if program.insns and program.jited and program.jited_addr]


def compare_program(case: Case, recorded: RecordedProgram, kernel: ProgramKernel) -> Iterator[Difference]:
    """Differences between the generated image of a program and the kernel's."""
    what = f"program {recorded.name}"
    try:
        code = compile_program(case, recorded, kernel).code
    except (TrampolineError, KernelError) as error:
        yield Difference(case.id, what, -1, "as recorded", f"{type(error).__name__}: {error}")
        return
    if code != recorded.jited:
        offset = first_difference(code, recorded.jited)
        yield Difference(
            case.id, f"image of {what} at {recorded.jited_addr:#x}", offset, recorded.jited.hex(), code.hex()
        )


def compile_program(case: Case, recorded: RecordedProgram, kernel: ProgramKernel) -> JitImage:
    """The image of a recorded program for its recorded address, through verifier, rewriting and JIT."""
    insns = decode(recorded.insns)
    program, target = _program(case, recorded, insns)
    verified = kernel.verified(program, target)
    btf = kernel.view.btf
    environment = Environment(
        _CALL_BASE,
        functions=case.symbols,
        maps=(0,),
        map_values=_map_values(recorded, insns),
        kfunc_name=lambda btf_id: btf.function(btf_id).name,
    )
    rewritten = rewrite(verified, kernel.release.rewrite, environment)
    address = recorded.jited_addr or 0
    (func,) = rewritten.link([address])
    return compile_func(func, address, kernel.release.jit, JitBoot(case.boot))


def _map_values(recorded: RecordedProgram, insns: tuple[Insn, ...]) -> dict[int, int]:
    """Guest addresses of the maps' values: the slot's address is recorded, its offset is in the program."""
    for insn in insns:
        if insn.code == LD_IMM64 and insn.src == Imm64.MAP_VALUE:
            if recorded.map_value is None:
                raise GoldenError(f"{recorded.name}: the address of its map slot is not recorded")
            return {0: recorded.map_value - (insn.imm >> 32)}
    return {}


def _program(case: Case, recorded: RecordedProgram, insns: tuple[Insn, ...]) -> tuple[BpfProgram, AttachTarget | None]:
    program = BpfProgram(
        recorded.name,
        insns,
        _known(ProgType, recorded.prog_type),
        _known(AttachType, recorded.attach_type),
        flags=recorded.prog_flags,
        attach_btf_id=recorded.attach_btf_id,
        maps=(_SLOTS,),
    )
    traced = next((t for t in case.targets if t.is_program and t.btf_id == recorded.attach_btf_id), None)
    if traced is None or recorded.is_fprobe:
        return program, None
    # With a BPF program as the target: its BTF contains the recorded function.
    writer = BtfWriter()
    context = writer.pointer(writer.add(BtfKind.STRUCT, "__sk_buff", 192))
    prototype = writer.prototype(writer.number(), *(context for _ in traced.model.args))
    btf_id = writer.function(traced.name.removeprefix("@"), prototype, is_global=True)
    btf = writer.btf()
    main = BpfProgram("target", (), ProgType.SOCKET_FILTER, btf=btf)
    program = replace(program, attach_prog=main, attach_btf_id=btf_id)
    return program, AttachTarget(traced.name, btf, btf_id, btf.function(btf_id), main, btf.function(btf_id).model)


def _known(kinds: type[ProgType] | type[AttachType], number: int) -> ProgType | AttachType | int:
    return kinds(number) if number in list(kinds) else number
