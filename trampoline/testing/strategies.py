"""Hypothesis strategies: prototypes, arguments, programs, releases and designs."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from trampoline.bpf.btf.func_model import FuncModel
from trampoline.bpf.uapi import AttachType
from trampoline.designs.traits import Traits
from trampoline.image.generator import ARG_REGISTERS
from trampoline.releases import releases as all_releases
from trampoline.releases.kernel_release import KernelRelease
from trampoline.testing.traced_functions import Prototype

_SCALARS = ("char", "u8", "short", "u16", "int", "u32", "long", "u64", "void *")
_STRUCTS = {
    "struct tramplab_4": "struct tramplab_4 { int a; };",
    "struct tramplab_8": "struct tramplab_8 { long a; };",
    "struct tramplab_12": "struct tramplab_12 { int a[3]; };",
    "struct tramplab_16": "struct tramplab_16 { long a; long b; };",
}
_LARGE = ("struct tramplab_12", "struct tramplab_16")
_SMALL = tuple(name for name in _STRUCTS if name not in _LARGE)
_RETURNS = ("int", "u64", "long", "u64", "long", "int", "char", "u16", "void", "void")


@st.composite
def prototypes(draw: st.DrawFn, name: str, *, max_slots: int = 12, structs: bool = True) -> Prototype:
    """A function of that name with up to so many argument slots."""
    # Each number of slots about as likely as any other, the edges of what registers and releases take more so.
    slots = draw(st.sampled_from([*range(max_slots + 1), *(edge for edge in (6, 7, max_slots) if edge <= max_slots)]))
    left = slots
    types: list[str] = []
    while left:
        fitting = _SCALARS + (tuple(_STRUCTS if left > 1 else _SMALL) if structs else ())
        if structs and left > 2 and slots - left == len(ARG_REGISTERS) - 1:
            # More than the last register holds: it goes to the stack, and the register is the next one's.
            fitting += _LARGE * 4
        types.append(draw(st.sampled_from(fitting)))
        left -= 2 if types[-1] in _LARGE else 1
    used = "".join(text for kind, text in _STRUCTS.items() if kind in types)
    args = ", ".join(f"{kind} a{number}" for number, kind in enumerate(types)) or "void"
    return Prototype(name, f"{used}{draw(st.sampled_from(_RETURNS))} {name}({args})")


def words(model: FuncModel) -> SearchStrategy[tuple[int, ...]]:
    """The argument words of a call: any 64 bits in each, edges more often."""
    edges = st.sampled_from((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1))
    return st.tuples(*[edges | st.integers(0, (1 << 64) - 1)] * model.nr_regs)


def cookies() -> SearchStrategy[int]:
    """A link's cookie; each way to load it as a constant."""
    return st.sampled_from((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1)) | st.integers(0, (1 << 64) - 1)


def results() -> SearchStrategy[int]:
    """What a program returns: often 0, or what is none in some part of it."""
    return st.sampled_from((0, 0, 0, 7, -22, 1 << 32, 1 << 63))


def releases() -> SearchStrategy[KernelRelease]:
    """A kernel's release."""
    return st.sampled_from(all_releases())


def kinds(
    traits: Traits,
    release: KernelRelease,
    *,
    multi: bool = True,
    sleepable: bool = False,
    last: AttachType | None = None,
) -> SearchStrategy[AttachType]:
    """An attach type that a design has on a release, in its plain form; of plain links, those of LSM programs too. That
    of the last program comes more often: programs of one kind share an order, a limit and places in a frame.
    """
    lsm = () if multi else (AttachType.LSM_MAC,) if sleepable else (AttachType.LSM_MAC, AttachType.LSM_CGROUP)
    able = (*traits.kinds(release.trampoline), *lsm)
    return st.sampled_from((*able, *[last] * 2) if last in able else able)
