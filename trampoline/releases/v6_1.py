"""Linux 6.1, read from images and BTF of Debian's 6.1.192."""

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.helpers.rules import HelperRules
from trampoline.bpf.isa.insn import Alu
from trampoline.bpf.isa.rules import IsaRules, MayGoto
from trampoline.bpf.jit.encode import R10
from trampoline.bpf.jit.rules import REGISTERS, JitRules, ProbeCheck
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.maps.rules import bpf_map, map_rules
from trampoline.bpf.rewrite.rules import RewriteRules
from trampoline.bpf.uapi import MapType, ProgFlag, ProgType
from trampoline.bpf.verifier.rules.call_rules import CallRules
from trampoline.bpf.verifier.rules.engine_rules import EngineRules
from trampoline.bpf.verifier.rules.kfunc_rules import KfuncRules
from trampoline.bpf.verifier.rules.load_rules import LoadRules
from trampoline.bpf.verifier.rules.target_rules import TargetRules
from trampoline.bpf.verifier.rules.verifier_rules import VerifierRules
from trampoline.bpf.verifier.values.arith import Tightness
from trampoline.bpf.verifier.values.bounds import sync_by_sign
from trampoline.bpf.verifier.values.branches import refine_by_constant, taken_by_constant
from trampoline.releases import arg_types
from trampoline.releases.kernel_release import KernelRelease
from trampoline.rules import TrampolineRules

RELEASE = KernelRelease(
    name="6.1",
    version=KernelVersion(6, 1, 192),
    recorded=True,
    entry=EntryLayout(endbr=False),
    sign_extended_imm=False,
    fsession=False,
    union_args=False,
    isa=IsaRules(extended=False, ordered=False, may_goto=MayGoto.NONE),
    helpers=HelperRules(count=210),
    maps=map_rules(
        bpf_map(0x100, 0x00, id=0x44, btf_ids=0x4C, name=0x68, refcnt=0x80, bypass=0xE8),
        value=0x110,
        htab_size=0x340,
        buckets=0x160,
        freelist=0x180,
        count=0x2B0,
        n_buckets=0x2B8,
        ops_size=0x148,
        for_each=0x130,
        prog_bpf_func=0x30,
    ),
    tag_hash="sha1",
    trampoline=TrampolineRules(
        saves_rbx_by_push=True,
        stack_args=False,
        longest_nop=8,
        packs_images=False,
        jmp_sites=False,
        skip_nops=False,
    ),
    jit=JitRules(
        (*REGISTERS, R10),
        bmi2_shifts=False,
        probe=ProbeCheck.CARRY,
        tail_call_by_pointer=False,
        counter_for_all_calls=True,
        frugal_rcx_shifts=False,
    ),
    rewrite=RewriteRules(ax=11, inlines_percpu=False, gfp_atomic=0xA20, inlines_kptr_xchg=False),
    verifier=VerifierRules(
        load=LoadRules(
            flags=ProgFlag.STRICT_ALIGNMENT
            | ProgFlag.ANY_ALIGNMENT
            | ProgFlag.TEST_RND_HI32
            | ProgFlag.TEST_STATE_FREQ
            | ProgFlag.SLEEPABLE
            | ProgFlag.XDP_HAS_FRAGS,
            types=32,
            map_types=32,
            sleepable_maps=frozenset(
                {
                    MapType.HASH,
                    MapType.LRU_HASH,
                    MapType.ARRAY,
                    MapType.PERCPU_HASH,
                    MapType.PERCPU_ARRAY,
                    MapType.LRU_PERCPU_HASH,
                    MapType.ARRAY_OF_MAPS,
                    MapType.HASH_OF_MAPS,
                    MapType.RINGBUF,
                    MapType.USER_RINGBUF,
                    MapType.INODE_STORAGE,
                    MapType.SK_STORAGE,
                    MapType.TASK_STORAGE,
                }
            ),
            sleepable_maps_fault="Sleepable programs can only use array, hash, and ringbuf maps",
        ),
        target=TargetRules(
            nests=False,
            sleepable_types=frozenset({ProgType.TRACING, ProgType.LSM, ProgType.KPROBE}),
            sleepable_attach=None,
            sleepable_fault="Only fentry/fexit/fmod_ret, lsm, and kprobe/uprobe programs can be sleepable",
            sleepable_lsm_cgroup=True,
            multi=False,
            syscalls=False,
            faultable=False,
            noreturn_fault="",
            deny_fault="",
            fprobe=False,
        ),
        engine=EngineRules(
            Tightness(
                sync_by_sign,
                frozenset({Alu.MUL, Alu.OR, Alu.XOR, Alu.LSH, Alu.RSH, Alu.ARSH}),
                extends_unknown=True,
                casts_bitwise=False,
            ),
            taken_by_constant,
            refine_by_constant,
            flips_known_left=False,
            indirect_goto=False,
            percpu_and_casts=False,
            fields_first=False,
            refuses_call_loops=True,
            call_loops_by_order=False,
            callback_once=True,
            main_first=False,
            max_frames=8,
            frame_round=32,
            private_stack=False,
            stack_end_is_invalid=True,
            narrow_fills=False,
            spills_constants=False,
            spills_unknown=False,
            links_low_half=False,
            names_zero_size=False,
            ctx_fixed_off=False,
            clobbers_read=True,
            trusts_more_pointers=False,
            compares_same=False,
            may_goto_nowhere=False,
            folds_offsets=False,
            stack_arguments=False,
            ctx_store_imm=False,
            linked_offsets=False,
            live_registers=False,
            keeps_or_null_off=False,
        ),
        calls=CallRules(
            arg_types.UNTRUSTED,
            unavailable="unknown func {name}#{number}",
            names_context=False,
            global_calls_by_sleep=False,
            trusted=False,
            untrusted_leaves=False,
            any_pointer_is_number=False,
            lsm_ranges=False,
            release_zero_off=False,
            contexts_are_memory=True,
            cpu_number_bounded=False,
            elides_null=False,
            map_owner_fault="kernel subsystem misconfigured verifier",
            func_ip_kinds="fentry/fexit/fmod_ret",
            ringbuf_word="alloc_",
            return_ranges=False,
            names_global=False,
            arg_tags=False,
            const_dynptrs=False,
        ),
        kfuncs=KfuncRules(trusted_by_default=False, nested_rcu=False, names_registers=False, void_cast=False),
    ),
)
