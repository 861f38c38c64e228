"""Contents of registers and stack slots: ``enum bpf_reg_type`` and its flags, under the kernel's names."""

from enum import Enum, IntFlag, auto


class RegKind(Enum):
    """Base type of a register. Values are the log's names."""

    NOT_INIT = "?"
    SCALAR_VALUE = "scalar"
    PTR_TO_CTX = "ctx"
    CONST_PTR_TO_MAP = "map_ptr"
    PTR_TO_MAP_VALUE = "map_value"
    PTR_TO_MAP_KEY = "map_key"
    PTR_TO_STACK = "fp"
    PTR_TO_PACKET_META = "pkt_meta"
    PTR_TO_PACKET = "pkt"
    PTR_TO_PACKET_END = "pkt_end"
    PTR_TO_FLOW_KEYS = "flow_keys"
    PTR_TO_SOCKET = "sock"
    PTR_TO_SOCK_COMMON = "sock_common"
    PTR_TO_TCP_SOCK = "tcp_sock"
    PTR_TO_TP_BUFFER = "tp_buffer"
    PTR_TO_XDP_SOCK = "xdp_sock"
    PTR_TO_BTF_ID = "ptr_"
    PTR_TO_MEM = "mem"
    PTR_TO_ARENA = "arena"
    PTR_TO_BUF = "buf"
    PTR_TO_FUNC = "func"
    PTR_TO_INSN = "insn"
    CONST_PTR_TO_DYNPTR = "dynptr_ptr"


class Flag(IntFlag):
    """``enum bpf_type_flag``: modifiers of a base type."""

    NONE = 0
    PTR_MAYBE_NULL = auto()
    MEM_RDONLY = auto()
    MEM_RINGBUF = auto()
    MEM_USER = auto()
    MEM_PERCPU = auto()
    PTR_UNTRUSTED = auto()
    PTR_TRUSTED = auto()
    MEM_RCU = auto()
    MEM_ALLOC = auto()
    NON_OWN_REF = auto()
    DYNPTR_TYPE_LOCAL = auto()
    DYNPTR_TYPE_RINGBUF = auto()
    DYNPTR_TYPE_SKB = auto()
    DYNPTR_TYPE_XDP = auto()


class SlotKind(Enum):
    """One byte of stack; eight of the same SPILL are a spilled register. Values are the log's characters."""

    INVALID = "?"
    SPILL = "r"
    MISC = "m"
    ZERO = "0"
    DYNPTR = "d"
    ITER = "i"
    IRQ_FLAG = "f"
