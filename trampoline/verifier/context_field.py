"""An access to a context, and what is there."""

from dataclasses import dataclass

from trampoline.btf import Btf
from trampoline.verifier.kinds import Flag, Kind
from trampoline.verifier.scalar import Scalar


@dataclass(frozen=True, slots=True)
class Access:
    """``size`` bytes at ``off``."""

    off: int
    size: int
    write: bool


@dataclass(frozen=True, slots=True)
class Field:
    """What a load from the context gives (``struct bpf_insn_access_aux``)."""

    kind: Kind = Kind.SCALAR_VALUE
    flags: Flag = Flag.NONE
    btf: Btf | None = None
    btf_id: int = 0
    number: Scalar | None = None
    """What is known of the number; None: nothing."""
