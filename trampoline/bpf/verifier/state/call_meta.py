"""Data that the check of one call collects from its arguments (``struct bpf_call_arg_meta``)."""

from dataclasses import dataclass, field

from trampoline.bpf.btf.btf import Btf
from trampoline.bpf.helpers.protos import HelperProto
from trampoline.bpf.program import MapSpec
from trampoline.bpf.verifier.state.state import Reg


@dataclass(slots=True)
class CallMeta:
    """One call of a helper."""

    name: str
    number: int
    proto: HelperProto
    map: MapSpec | None = None
    map_uid: int = 0
    const_key: int | None = None
    """Known constant key on the stack."""
    mem_size: int = 0
    """Constant size of the reserved memory."""
    largest_size: int | None = None
    """Maximum of the size argument."""
    ref_obj_id: int = 0
    release_regno: int = 0
    subprog: int = -1
    ret_btf: Btf | None = None
    ret_btf_id: int = 0
    dynptr: Reg | None = None
    """First slot of the dynptr that the helper uses."""
    written: list[tuple[int, int]] = field(default_factory=list)
    """(register, bytes) of stack that the helper writes."""

    @property
    def shown(self) -> str:
        """Name in messages: ``bpf_map_lookup_elem#1``."""
        return f"bpf_{self.name}#{self.number}"
