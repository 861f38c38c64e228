"""Linux 7.2, read from images and BTF of Debian's 7.2.13."""

from dataclasses import replace

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.isa.rules import IsaRules, MayGoto
from trampoline.bpf.jit.encode import R10
from trampoline.bpf.jit.rules import REGISTERS, ArenaFaults
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.maps.rules import bpf_map, map_rules
from trampoline.bpf.uapi import AttachType, MapType, ProgType
from trampoline.bpf.verifier.values.kinds import Flag, RegKind
from trampoline.releases import arg_types
from trampoline.releases.v6_12 import RELEASE as V6_12

_SLEEPABLE_ATTACH = V6_12.verifier.target.sleepable_attach or frozenset()

RELEASE = replace(
    V6_12,
    name="7.2",
    version=KernelVersion(7, 2, 13),
    entry=EntryLayout(endbr=True, sealed=bytes.fromhex("0f1f40d6"), padding=16),
    fsession=True,
    union_args=True,
    isa=IsaRules(extended=True, ordered=True, may_goto=MayGoto.TIMED),  # both: 6.15
    helpers=replace(V6_12.helpers, raw_tracepoints_trace=True),
    maps=map_rules(
        bpf_map(0x120, 0x28, id=0x5C, btf_ids=0x6C, name=0x88, refcnt=0xB0, bypass=0xF8),
        value=0x130,
        htab_size=0x380,
        buckets=0x1C0,
        freelist=0x200,
        count=0x330,
        n_buckets=0x338,
        ops_size=0x160,
        for_each=0x140,
        prog_bpf_func=0x48,
    ),
    tag_hash="sha256",
    trampoline=replace(
        V6_12.trampoline,
        jmp_sites=True,
        skip_nops=True,
        max_links=36,
    ),
    jit=replace(
        V6_12.jit,
        registers=(*REGISTERS, -1, R10),
        locks_xchg=False,
        stack_args_register=11,
        arena_faults=ArenaFaults.DIRECTION,
    ),
    rewrite=replace(
        V6_12.rewrite,
        ax=12,
        cpu_number="cpu_number",
        current_task="current_task",
        percpu_wide=True,  # 9d7de2aa8b41, 6.15
        count_mask=0xFF,
        decides_constants=True,
    ),
    verifier=replace(
        V6_12.verifier,
        load=replace(
            V6_12.verifier.load,
            map_types=35,  # 7.2.12 has BPF_MAP_TYPE_RHASH as well, which is not modelled
            sleepable_maps=V6_12.verifier.load.sleepable_maps
            | {MapType.INSN_ARRAY, MapType.PROG_ARRAY, MapType.LPM_TRIE},
        ),
        target=replace(
            V6_12.verifier.target,
            sleepable_types=V6_12.verifier.target.sleepable_types | {ProgType.RAW_TRACEPOINT, ProgType.TRACEPOINT},
            sleepable_attach=_SLEEPABLE_ATTACH
            | {
                AttachType.TRACE_FENTRY_MULTI,
                AttachType.TRACE_FEXIT_MULTI,
                AttachType.TRACE_FSESSION_MULTI,
                AttachType.TRACE_RAW_TP,
                AttachType.TRACE_FSESSION,
            },
            sleepable_fault="Program of this type cannot be sleepable",
            sleepable_lsm_cgroup=False,
            multi=True,
            syscalls=True,  # 7.1
            faultable=True,
            noreturn_fault="Attaching fexit/fsession/fmod_ret to __noreturn function '{name}' is rejected.",
            deny_fault="Attaching tracing programs to function '{name}' is rejected.",
        ),
        engine=replace(
            V6_12.verifier.engine,
            arithmetic=replace(
                V6_12.verifier.engine.arithmetic,
                keeps_double_overflow=True,
                signed_products=True,
                divides=True,
                negates=True,
                swaps=True,
            ),
            indirect_goto=True,  # 7.0
            fields_first=True,  # 7.1
            call_loops_by_order=True,  # 7.1
            max_frames=16,
            private_stack=True,  # 6.13
            ctx_fixed_off=True,  # 7.0
            clobbers_read=False,  # 6.13
            compares_same=True,  # 6.19
            may_goto_nowhere=True,  # 6.15
            folds_offsets=True,  # 7.1
            stack_arguments=True,  # 7.2
            live_registers=True,  # 6.16
            keeps_or_null_off=True,
        ),
        calls=replace(
            V6_12.verifier.calls,
            arg_types=arg_types.trusted((RegKind.PTR_TO_CTX, Flag.NONE)),
            names_context=True,
            global_calls_by_sleep=True,
            untrusted_leaves=True,  # 6.17
            any_pointer_is_number=True,
            contexts_are_memory=False,
            elides_null=True,  # 6.14
            map_owner_fault="expected prog array map for tail call",
            func_ip_kinds="fentry/fexit/fsession/fmod_ret",
            void_globals=True,
            kprobe_writes=True,  # 6.18
        ),
        kfuncs=replace(
            V6_12.verifier.kfuncs,
            trusted_by_default=True,  # 7.0
            nested_rcu=True,
            names_registers=True,
            void_cast=True,  # 6.17
        ),
    ),
)
