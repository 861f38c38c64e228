"""A kernel release as one value: the facts that several stations share, and each station's own rules."""

from dataclasses import dataclass, replace
from typing import Any

from emu.kernel.text.entry import EntryLayout
from trampoline.bpf.function_lists import names
from trampoline.bpf.helpers.rules import HelperRules
from trampoline.bpf.isa.rules import IsaRules, MayGoto
from trampoline.bpf.jit.rules import JitRules
from trampoline.bpf.kernel_version import KernelVersion
from trampoline.bpf.maps.rules import MapRules
from trampoline.bpf.rewrite.rules import RewriteRules
from trampoline.bpf.verifier.rules.verifier_rules import VerifierRules
from trampoline.rules import TrampolineRules


@dataclass(frozen=True, eq=False)
class KernelRelease:
    """One kernel release.

    ``dataclasses.replace`` makes a release of an older one: of what is given, facts of the release win over the fields
    of stations' rules that are "from the release", in whichever of the two values they were set.
    """

    name: str
    """Name in commands and tests: ``6.12``."""
    version: KernelVersion
    """The stable kernel that the values were read from; the lists' marks are compared with its series."""
    entry: EntryLayout
    """Entry of traceable functions, which the JIT's endbr64 goes with."""
    sign_extended_imm: bool
    """JIT and trampolines load constants of 64 bits with ``mov r64, imm32`` where they can (af7c2c7a5b5d, 6.11)."""
    fsession: bool
    """fsession programs exist: their attach type, trampolines, kernel functions."""
    union_args: bool
    """Unions by value are arguments like structs are, for verifier and trampolines."""
    isa: IsaRules
    """Instructions: what verifier, rewriting and JIT take."""
    helpers: HelperRules
    maps: MapRules
    """Layout of maps, whose offsets are in compiled and rewritten programs."""
    tag_hash: str
    """Hash of programs' tags, by its name in hashlib (``bpf_prog_calc_tag``)."""
    trampoline: TrampolineRules
    jit: JitRules
    rewrite: RewriteRules
    verifier: VerifierRules
    sls: bool = True
    """int3 follows a plain ret, in JIT and trampolines (CONFIG_MITIGATION_SLS; on in the recorded kernels)."""
    recorded: bool = False
    """Recordings of this release prove its values (docs/golden.md); else they are from its sources."""

    def __post_init__(self) -> None:
        isa, fsession, union_args = self.isa, self.fsession, self.union_args
        code = {"sign_extended_imm": self.sign_extended_imm, "sls": self.sls}
        self._hand("helpers", version=self.version, fsession=fsession)
        self._hand("trampoline", entry=self.entry, fsession=fsession, union_args=union_args, **code)
        self._hand(
            "jit",
            endbr=self.entry.endbr,
            max_entries_offset=self.maps.bpf_map.offset("max_entries"),
            ptrs_offset=self.maps.bpf_array.offset("ptrs"),
            bpf_func_offset=self.maps.prog_bpf_func,
            **code,
        )
        self._hand(
            "rewrite",
            array_value=self.maps.bpf_array.offset("value"),
            may_goto=isa.may_goto,
            helpers=self.helpers,
        )
        verifier = self.verifier
        self._hand(
            "verifier",
            version=self.version,
            helpers=self.helpers,
            target=replace(verifier.target, session=fsession, union_args=union_args),
            engine=replace(
                verifier.engine,
                extended_set=isa.extended,
                store_release=isa.ordered,
                may_goto=isa.may_goto is not MayGoto.NONE,
                may_goto_stack=isa.may_goto.stack,
            ),
        )

    def _hand(self, station: str, **facts: Any) -> None:
        object.__setattr__(self, station, replace(getattr(self, station), **facts))

    @property
    def btf_id_deny(self) -> frozenset[str]:
        """Functions that BPF refuses to trace."""
        return names("btf_id_deny", self.version).exact

    @property
    def noreturn_deny(self) -> frozenset[str]:
        """Functions that don't return, on which fexit and fmod_ret are refused."""
        return names("noreturn_deny", self.version).exact
