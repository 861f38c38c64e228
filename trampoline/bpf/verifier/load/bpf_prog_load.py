"""BPF_PROG_LOAD: the checks before verification, in the kernel's order, then the verification.

``bpf_prog_load`` and ``bpf_prog_load_check_attach`` of kernel/bpf/syscall.c, ``check_btf_info`` and
``check_map_prog_compatibility`` of kernel/bpf/verifier.c.
"""

from dataclasses import dataclass
from errno import E2BIG, EBADF, EINVAL, EPERM
from typing import NoReturn

from trampoline.bpf.isa.insn import Imm64
from trampoline.bpf.program import BpfProgram, MapSpec
from trampoline.bpf.uapi import MapType, ProgFlag, ProgType
from trampoline.bpf.verifier.errors import VerifierError
from trampoline.bpf.verifier.kernel_view import KernelView
from trampoline.bpf.verifier.prepass.func_info import check_btf_info
from trampoline.bpf.verifier.rules.load_rules import (
    ATTACH_TYPES,
    FIXED_UP,
    MAX_INSNS,
    MAX_INSNS_UNPRIVILEGED,
    MAX_TYPE_ID,
    NET_ADMIN_TYPES,
    PERFMON_TYPES,
    UNPRIVILEGED_TYPES,
    LoadRules,
)
from trampoline.bpf.verifier.state.env import Capabilities
from trampoline.bpf.verifier.state.result import Verified
from trampoline.bpf.verifier.target.check_attach_target import AttachTarget, check_attach_btf_id
from trampoline.bpf.verifier.walk.bpf_check import bpf_check

_NAMED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedLoad:
    """A program loaded into a kernel."""

    program: BpfProgram
    kernel: KernelView
    target: AttachTarget | None
    verified: Verified


def bpf_prog_load(
    program: BpfProgram,
    kernel: KernelView,
    *,
    capabilities: Capabilities | None = None,
    log_level: int = 2,
    insn_cnt: int | None = None,
) -> VerifiedLoad:
    """Load a program into a kernel.

    ``insn_cnt``: the number of slots that the caller claims, if not that of ``program``. Raises VerifierError with the
    kernel's errno if the kernel refuses, and Unsupported if verifier-lite cannot decide.
    """
    capabilities = capabilities or Capabilities()
    slots = sum(insn.slots for insn in program.insns)
    check_load_attributes(program, kernel, capabilities, slots if insn_cnt is None else insn_cnt)
    rules = kernel.rules.load
    check_btf_info(program, slots)
    target = check_attach_btf_id(program, kernel)
    _check_maps(program, rules)
    verified = bpf_check(program, kernel, target, capabilities=capabilities, log_level=log_level)
    return VerifiedLoad(program, kernel, target, verified)


def check_load_attributes(program: BpfProgram, kernel: KernelView, capabilities: Capabilities, insn_cnt: int) -> None:
    """Check the load attributes as ``bpf_prog_load`` does; refusals are not logged. Raises VerifierError."""
    rules = kernel.rules.load
    kind = program.prog_type
    # Plain ints: the complement of an IntFlag contains only defined flags.
    if program.flags & ~int(rules.flags):
        _refuse(EINVAL, f"flags {program.flags:#x} have bits that this kernel does not know")
    if program.flags & ProgFlag.TOKEN_FD:
        _refuse(EINVAL, "no BPF token is given")
    if not 0 < insn_cnt <= (MAX_INSNS if capabilities.bpf else MAX_INSNS_UNPRIVILEGED):
        _refuse(E2BIG, f"{insn_cnt} instructions")
    if kind not in UNPRIVILEGED_TYPES and not capabilities.bpf:
        _refuse(EPERM, "CAP_BPF is missing")
    if kind in NET_ADMIN_TYPES and not capabilities.net_admin:
        _refuse(EPERM, "CAP_NET_ADMIN is missing")
    if kind in PERFMON_TYPES and not capabilities.perfmon:
        _refuse(EPERM, "CAP_PERFMON is missing")
    _check_attach(program)
    if not 0 < kind < rules.types:
        _refuse(EINVAL, f"no program type {int(kind)}")
    if not _NAMED.issuperset(program.name):
        _refuse(EINVAL, f"the name {program.name!r} has other than letters, digits, '_' and '.'")


def _refuse(errno: int, why: str) -> NoReturn:
    # The kernel does not log these refusals: the summary is our own text.
    raise VerifierError(errno, why)


def _check_attach(program: BpfProgram) -> None:
    """``bpf_prog_load_check_attach``: types that may have a target, and the attach types allowed for them."""
    kind, btf_id = program.prog_type, program.attach_btf_id
    if btf_id > MAX_TYPE_ID:
        _refuse(EINVAL, f"attach_btf_id {btf_id} is greater than a type id can be")
    if btf_id and kind not in (ProgType.TRACING, ProgType.LSM, ProgType.STRUCT_OPS, ProgType.EXT):
        _refuse(EINVAL, "attach_btf_id is for TRACING, LSM, STRUCT_OPS and EXT programs")
    if program.attach_prog is not None and kind not in (ProgType.TRACING, ProgType.EXT):
        _refuse(EINVAL, "attach_prog_fd is for TRACING and EXT programs")
    attach = program.attach
    if not attach and kind in FIXED_UP:
        attach = FIXED_UP[ProgType(kind)]
    if kind in ATTACH_TYPES and attach not in ATTACH_TYPES[ProgType(kind)]:
        _refuse(EINVAL, f"expected_attach_type {int(program.attach)} is not one of this program type")


def _check_maps(program: BpfProgram, rules: LoadRules) -> None:
    """Check maps by descriptor, and ``check_map_prog_compatibility``."""
    slot = 0
    for insn in program.insns:
        if insn.slots == 2 and insn.src in (Imm64.MAP_FD, Imm64.MAP_VALUE):
            fd = insn.imm & 0xFFFFFFFF
            if fd >= len(program.maps) or program.maps[fd].type >= rules.map_types:
                raise VerifierError(EBADF, f"fd {fd} is not pointing to valid bpf_map", slot)
            _check_map(program, program.maps[fd], rules, slot)
        slot += insn.slots


def _check_map(program: BpfProgram, spec: MapSpec, rules: LoadRules, slot: int) -> None:
    if spec.type == MapType.UNSPEC:
        raise VerifierError(EINVAL, f"fd of {spec.name!r} is not pointing to valid bpf_map", slot)
    if spec.type == MapType.STRUCT_OPS:
        raise VerifierError(EINVAL, "bpf_struct_ops map cannot be used in prog", slot)
    if program.sleepable and spec.type not in rules.sleepable_maps:
        raise VerifierError(EINVAL, rules.sleepable_maps_fault, slot)
