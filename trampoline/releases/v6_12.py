"""Linux 6.12, read from images and BTF of Debian's 6.12.107."""

from dataclasses import replace

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.helpers.rules import HelperRules
from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.isa.rules import IsaRules, MayGoto
from trampoline.bpf.jit.rules import ProbeCheck
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.maps.rules import bpf_map, map_rules
from trampoline.bpf.uapi import AttachType, MapType, ProgFlag, ProgType
from trampoline.bpf.verifier.values.arith import Tightness
from trampoline.bpf.verifier.values.bounds import sync_mixed
from trampoline.bpf.verifier.values.branches import refine_by_range, taken_by_range
from trampoline.releases import arg_types
from trampoline.releases.v6_1 import RELEASE as V6_1

RELEASE = replace(
    V6_1,
    name="6.12",
    version=KernelVersion(6, 12, 107),
    entry=EntryLayout(endbr=True, sealed=bytes.fromhex("660f1f00"), padding=16),  # CONFIG_CALL_PADDING
    sign_extended_imm=True,  # af7c2c7a5b5d, 6.11
    # The fourth version of the set: 6.6; may_goto: 6.9.
    isa=IsaRules(extended=True, ordered=False, may_goto=MayGoto.COUNTED),
    helpers=HelperRules(count=212),
    maps=map_rules(
        bpf_map(0xF8, 0x00, id=0x34, btf_ids=0x44, name=0x60, refcnt=0x90, bypass=0xD8),
        value=0x108,
        htab_size=0x380,
        buckets=0x178,
        freelist=0x1C0,
        count=0x2F0,
        n_buckets=0x2F8,
        ops_size=0x158,
        for_each=0x138,
        prog_bpf_func=0x30,
    ),
    trampoline=replace(
        V6_1.trampoline,
        saves_rbx_by_push=False,  # 6.5
        stack_args=True,  # 473e3150e30a, 6.7
        longest_nop=11,
        packs_images=True,
    ),
    jit=replace(
        V6_1.jit,
        bmi2_shifts=True,  # 77d8f5d47bfb, 6.2
        probe=ProbeCheck.RANGE,
        tail_call_by_pointer=True,  # 116e04ba1459, 6.12
        # No recording has a helper call where it matters; the source of 6.12.107 loads the counter there, too.
        counter_for_all_calls=False,
        frugal_rcx_shifts=True,  # 8662de232149, 6.2
    ),
    rewrite=replace(
        V6_1.rewrite,
        inlines_percpu=True,  # db69718b8efa, 6.10
        cpu_number="pcpu_hot.cpu_number",  # 1ae6921009e5, 6.10
        gfp_atomic=0x820,
        inlines_kptr_xchg=True,  # 7c05e7f3e74e, 6.8
    ),
    verifier=replace(
        V6_1.verifier,
        load=replace(
            V6_1.verifier.load,
            flags=V6_1.verifier.load.flags
            | ProgFlag.XDP_DEV_BOUND_ONLY
            | ProgFlag.TEST_REG_INVARIANTS
            | ProgFlag.TOKEN_FD,
            types=33,
            map_types=34,
            sleepable_maps=V6_1.verifier.load.sleepable_maps
            | {MapType.CGRP_STORAGE, MapType.QUEUE, MapType.STACK, MapType.ARENA},
            sleepable_maps_fault="Sleepable programs can only use array, hash, ringbuf and local storage maps",
        ),
        target=replace(
            V6_1.verifier.target,
            nests=True,  # 19bfcdf9498a, 6.8
            sleepable_types=V6_1.verifier.target.sleepable_types | {ProgType.STRUCT_OPS},
            sleepable_attach=frozenset(
                {
                    AttachType.TRACE_FENTRY,
                    AttachType.TRACE_FEXIT,
                    AttachType.MODIFY_RETURN,
                    AttachType.TRACE_ITER,
                }
            ),
            sleepable_fault="Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable",
            noreturn_fault="Attaching fexit/fmod_ret to __noreturn functions is rejected.",
            fprobe=True,
        ),
        engine=replace(
            V6_1.verifier.engine,
            arithmetic=Tightness(sync_mixed, frozenset({Alu.LSH, Alu.RSH, Alu.ARSH})),
            taken=taken_by_range,
            refine=refine_by_range,
            flips_known_left=True,  # 6.4
            percpu_and_casts=True,  # 6.9
            refuses_call_loops=False,
            callback_once=False,  # 6.7
            main_first=True,  # 6.8
            frame_round=16,
            narrow_fills=True,  # 6.9
            spills_constants=True,  # 6.3
            spills_unknown=True,  # 6.9
            links_low_half=True,  # 6.5
            names_zero_size=True,  # 6.8
            trusts_more_pointers=True,  # 6.3
            ctx_store_imm=True,  # 6.4
            linked_offsets=True,  # 6.10
        ),
        calls=replace(
            V6_1.verifier.calls,
            arg_types=arg_types.trusted(),
            unavailable="program of this type cannot use helper {name}#{number}",
            trusted=True,  # 6.2
            lsm_ranges=True,  # 6.12
            release_zero_off=True,
            cpu_number_bounded=True,
            ringbuf_word="ringbuf_",
            return_ranges=True,
            names_global=True,
            arg_tags=True,
            const_dynptrs=True,
        ),
    ),
)
