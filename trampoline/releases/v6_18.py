"""Linux 6.18, read from the sources of 6.18.35: no image, no BTF and no recording of it was at hand.

Offsets in maps were computed from the structs for a configuration as Debian's. ``swaps`` is in 6.18.35 by a stable
backport, other values may be too: earlier patch levels can differ.
"""

from dataclasses import replace

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.isa.rules import IsaRules, MayGoto
from trampoline.bpf.jit.rules import ArenaFaults
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.maps.rules import bpf_map, map_rules
from trampoline.releases.v6_12 import RELEASE as V6_12

RELEASE = replace(
    V6_12,
    name="6.18",
    version=KernelVersion(6, 18, 35),
    recorded=False,
    entry=EntryLayout(endbr=True, sealed=bytes.fromhex("0f1f40d6"), padding=16),  # gen_endbr_poison()
    union_args=True,  # __get_type_fmodel_flags()
    isa=IsaRules(extended=True, ordered=True, may_goto=MayGoto.TIMED),  # both: 6.15
    maps=map_rules(
        bpf_map(0x120, 0x20, id=0x54, btf_ids=0x64, name=0x80, refcnt=0xB0, bypass=0xF8),
        value=0x130,
        htab_size=0x340,
        buckets=0x1A0,
        freelist=0x1C0,
        count=0x2F0,
        n_buckets=0x2F8,
        ops_size=0x160,
        for_each=0x140,
        prog_bpf_func=0x48,
    ),
    tag_hash="sha256",  # bpf_prog_calc_tag(), 6.18
    jit=replace(V6_12.jit, arena_faults=ArenaFaults.ACCESS),
    rewrite=replace(
        V6_12.rewrite,
        cpu_number="cpu_number",
        percpu_wide=True,  # 9d7de2aa8b41, 6.15
    ),
    verifier=replace(
        V6_12.verifier,
        target=replace(
            V6_12.verifier.target,
            noreturn_fault="Attaching fexit/fmod_ret to __noreturn function '{name}' is rejected.",
            deny_fault="Attaching tracing programs to function '{name}' is rejected.",
        ),
        engine=replace(
            V6_12.verifier.engine,
            arithmetic=replace(
                V6_12.verifier.engine.arithmetic,
                keeps_double_overflow=True,  # 6.17
                signed_products=True,  # 6.14
                negates=True,  # 6.18
                swaps=True,  # 7.0, backported
            ),
            private_stack=True,  # 6.13
            clobbers_read=False,  # 6.13
            may_goto_nowhere=True,  # 6.15
            live_registers=True,  # 6.16
        ),
        calls=replace(
            V6_12.verifier.calls,
            global_calls_by_sleep=True,
            untrusted_leaves=True,  # 6.17
            elides_null=True,  # 6.14
            map_owner_fault="expected prog array map for tail call",
            kprobe_writes=True,
        ),
        kfuncs=replace(V6_12.verifier.kfuncs, void_cast=True),  # 6.17
    ),
)
