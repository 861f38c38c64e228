"""Prototypes of helpers (``struct bpf_func_proto``), read from protos.txt, and the helpers' numbers.

The verifier checks calls against them; the rewriting and the runtime look up the kernel's function in them.
"""

from dataclasses import dataclass
from enum import Enum, IntFlag, auto
from functools import cache

from trampoline.bpf.function_lists import lines, marked
from trampoline.bpf.kernel_version import KernelVersion


class HelperArg(Enum):
    """``enum bpf_arg_type`` without its flags."""

    ANYTHING = "ANYTHING"
    CONST_MAP_PTR = "CONST_MAP_PTR"
    MAP_KEY = "MAP_KEY"
    MAP_VALUE = "MAP_VALUE"
    MEM = "MEM"
    FIXED_SIZE_MEM = "FIXED_SIZE_MEM"
    LONG = "LONG"
    CONST_SIZE = "CONST_SIZE"
    CONST_SIZE_OR_ZERO = "CONST_SIZE_OR_ZERO"
    CONST_ALLOC_SIZE_OR_ZERO = "CONST_ALLOC_SIZE_OR_ZERO"
    CTX = "CTX"
    SPIN_LOCK = "SPIN_LOCK"
    TIMER = "TIMER"
    KPTR = "KPTR"
    SOCK_COMMON = "SOCK_COMMON"
    BTF_ID_SOCK_COMMON = "BTF_ID_SOCK_COMMON"
    BTF_ID = "BTF_ID"
    PERCPU_BTF_ID = "PERCPU_BTF_ID"
    RINGBUF_MEM = "RINGBUF_MEM"
    FUNC = "FUNC"
    STACK = "STACK"
    CONST_STR = "CONST_STR"
    DYNPTR = "DYNPTR"

    @property
    def is_size(self) -> bool:
        """True for the size of the memory that the previous argument points to."""
        return self in (HelperArg.CONST_SIZE, HelperArg.CONST_SIZE_OR_ZERO)


class Ret(Enum):
    """``enum bpf_return_type`` without its flags."""

    INTEGER = "INTEGER"
    VOID = "VOID"
    MAP_VALUE = "MAP_VALUE"
    RINGBUF_MEM = "RINGBUF_MEM"
    DYNPTR_MEM = "DYNPTR_MEM"
    MEM_OR_BTF_ID = "MEM_OR_BTF_ID"
    BTF_ID = "BTF_ID"
    BTF_ID_TRUSTED = "BTF_ID_TRUSTED"


class ArgFlag(IntFlag):
    """Flags of an argument or a return value."""

    NONE = 0
    NULL = auto()
    RDONLY = auto()
    UNINIT = auto()
    WRITE = auto()
    ALIGNED = auto()
    RELEASE = auto()
    LOCAL = auto()
    RINGBUF = auto()


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One argument."""

    type: HelperArg
    flags: ArgFlag = ArgFlag.NONE
    size: int = 0
    """Size of FIXED_SIZE_MEM and LONG in bytes."""
    btf: str = ""
    """Struct that a BTF_ID points to; empty: any, or determined by another argument."""

    def has(self, flag: ArgFlag) -> bool:
        """True if a flag is set."""
        return bool(self.flags & flag)


@dataclass(frozen=True, slots=True)
class HelperProto:
    """One kernel function that programs call as a helper."""

    symbol: str
    """Its row in protos.txt."""
    function: str
    """The kernel's function: ``bpf_map_lookup_elem``."""
    ret: Ret
    ret_null: bool
    """True if it may return NULL."""
    ret_rdonly: bool
    ret_btf: str
    args: tuple[ArgSpec, ...]
    gpl_only: bool = False
    sleeps: bool = False
    allowed: str = ""
    """Name of a further condition (``bpf_func_proto.allowed``), see availability.py."""

    @property
    def releases(self) -> int | None:
        """Index of the argument whose reference it releases (``OBJ_RELEASE``)."""
        return next((n for n, arg in enumerate(self.args) if arg.has(ArgFlag.RELEASE)), None)


@cache
def helper_names() -> tuple[str, ...]:
    """Names of helpers by number, "unspec" first."""
    return tuple(name for words in lines("helpers/names.txt") for name in words)


@cache
def helper_number(name: str) -> int:
    """The number of a helper: ``helper_number("map_lookup_elem")`` is 1. Raises ValueError for an unknown name."""
    return helper_names().index(name)


@cache
def protos(version: KernelVersion) -> dict[str, HelperProto]:
    """The prototypes of a version by their symbol: of several valid ones, the newest."""
    found: dict[str, tuple[KernelVersion, HelperProto]] = {}
    for words in lines("helpers/protos.txt"):
        symbol, span = marked(words[0])
        if version in span and (symbol not in found or found[symbol][0] <= span.first):
            found[symbol] = span.first, _proto(symbol, words[1:])
    return {symbol: proto for symbol, (_, proto) in found.items()}


def _proto(symbol: str, words: list[str]) -> HelperProto:
    prototype, _, tail = " ".join(words).partition("--")
    ret, *args = prototype.split()
    attributes = tail.split()
    named = dict(word.split("=") for word in attributes if "=" in word)
    ret_name, ret_flags, ret_btf = _parts(ret)
    return HelperProto(
        symbol,
        named.get("name", f"bpf_{symbol}"),
        Ret[ret_name],
        bool(ret_flags & ArgFlag.NULL),
        bool(ret_flags & ArgFlag.RDONLY),
        ret_btf,
        tuple(map(_arg, args)),
        "gpl" in attributes,
        "sleeps" in attributes,
        named.get("in", ""),
    )


def _parts(word: str) -> tuple[str, ArgFlag, str]:
    ahead, _, btf = word.partition("=")
    name, *flags = ahead.split("|")
    found = ArgFlag.NONE
    for flag in flags:
        found |= ArgFlag[flag]
    return name, found, btf


def _arg(word: str) -> ArgSpec:
    name, flags, what = _parts(word)
    if what.isdigit():
        return ArgSpec(HelperArg[name], flags, size=int(what))
    return ArgSpec(HelperArg[name], flags, size=8 if name == "LONG" else 0, btf=what)
