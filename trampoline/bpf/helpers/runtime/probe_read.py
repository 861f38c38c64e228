"""Helpers that read memory which may be unmapped (kernel/trace/bpf_trace.c), and compare and read strings.

User memory does not exist: reading it is a fault.
"""

from errno import E2BIG, EFAULT, EINVAL, ERANGE

from trampoline.bpf.helpers.runtime.definition import U64, Helper, HelperCall, python_helper, signed

TASK_SIZE_MAX = (1 << 47) - 4096
"""End of user space addresses."""
_BLANKS = b" \t\n\v\f\r"
BPF_STRTOX_BASE_MASK = 0x1F


def _read(call: HelperCall, destination: int, size: int, source: int, *, user: bool) -> int:
    size &= 0xFFFFFFFF
    is_user = source < TASK_SIZE_MAX
    data = call.read_nofault(source, size) if is_user is user else None
    # After a fault the buffer is zeroed, as programs may use it anyway.
    call.write(destination, bytes(size) if data is None else data)
    return -EFAULT if data is None else 0


def _read_string(call: HelperCall, destination: int, size: int, source: int, *, user: bool) -> int:
    size &= 0xFFFFFFFF
    if not size:
        return 0
    text = call.string(source, size - 1) if (source < TASK_SIZE_MAX) is user else None
    if text is None:
        call.write(destination, bytes(size))
        return -EFAULT
    call.write(destination, text + b"\0")
    return len(text) + 1


@python_helper("bpf_probe_read_kernel")
def probe_read_kernel(call: HelperCall, destination: int, size: int, source: int) -> int:
    """Copy kernel memory; -EFAULT and zeros if it is not mapped."""
    return _read(call, destination, size, source, user=False)


@python_helper("bpf_probe_read_user")
def probe_read_user(call: HelperCall, destination: int, size: int, source: int) -> int:
    """Copy user memory."""
    return _read(call, destination, size, source, user=True)


@python_helper("bpf_probe_read_compat")
def probe_read_compat(call: HelperCall, destination: int, size: int, source: int) -> int:
    """``bpf_probe_read``: the address decides between kernel and user memory."""
    return _read(call, destination, size, source, user=source < TASK_SIZE_MAX)


@python_helper("bpf_copy_from_user")
def copy_from_user(call: HelperCall, destination: int, size: int, source: int) -> int:
    """Copy user memory; may sleep in the kernel."""
    return _read(call, destination, size, source, user=True)


@python_helper("bpf_probe_read_kernel_str")
def probe_read_kernel_str(call: HelperCall, destination: int, size: int, source: int) -> int:
    """Copy a string with its NUL, truncated to the buffer; returns its length, or -EFAULT and zeros."""
    return _read_string(call, destination, size, source, user=False)


@python_helper("bpf_probe_read_user_str")
def probe_read_user_str(call: HelperCall, destination: int, size: int, source: int) -> int:
    """Copy a string from user memory."""
    return _read_string(call, destination, size, source, user=True)


@python_helper("bpf_probe_read_compat_str")
def probe_read_compat_str(call: HelperCall, destination: int, size: int, source: int) -> int:
    """``bpf_probe_read_str``."""
    return _read_string(call, destination, size, source, user=source < TASK_SIZE_MAX)


@python_helper("bpf_strncmp")
def strncmp(call: HelperCall, first: int, size: int, second: int) -> int:
    """Difference of the first bytes that differ, up to a NUL or ``size``."""
    for at in range(size & 0xFFFFFFFF):
        one, other = call.read(first + at, 1)[0], call.read(second + at, 1)[0]
        if one != other or not one:
            return -1 if one < other else int(one > other)
    return 0


def _number(text: bytes, base: int) -> tuple[int, int, bool]:
    """Magnitude, length in bytes and sign of the number at the start of a text; length 0 if there is no number."""
    at = 0
    while at < len(text) and text[at : at + 1] in (bytes([blank]) for blank in _BLANKS):
        at += 1
    negative = text[at : at + 1] == b"-"
    at += negative
    rest = text[at:].lower()
    prefixed = rest[:2] == b"0x" and rest[2:3] in (b"%c" % digit for digit in b"0123456789abcdef")
    if base == 0:
        base = 16 if prefixed else 8 if rest[:1] == b"0" else 10
    if base == 16 and prefixed:
        at += 2
    digits = b"0123456789abcdef"[:base]
    value, first = 0, at
    while at < len(text) and (digit := digits.find(text[at : at + 1].lower())) >= 0:
        value, at = value * base + digit, at + 1
    return value, at if at > first else 0, negative


def _convert(call: HelperCall, buffer: int, size: int, flags: int, result: int, *, is_signed: bool) -> int:
    """``__bpf_strtoll``, ``__bpf_strtoull``: returns the number of bytes read, or an error."""
    base = flags & BPF_STRTOX_BASE_MASK
    if not size or base not in (0, 8, 10, 16) or flags & ~BPF_STRTOX_BASE_MASK & U64:
        return -EINVAL
    text = call.read(buffer, size)
    value, taken, negative = _number(text.split(b"\0", 1)[0][:64], base)
    if not taken or (negative and not is_signed):
        return -EINVAL
    if value > U64 or (is_signed and value > (1 << 63) - (not negative)):
        return -ERANGE
    call.write(result, (-value & U64 if negative else value).to_bytes(8, "little"))
    return taken


@python_helper("bpf_strtol")
def strtol(call: HelperCall, buffer: int, size: int, flags: int, result: int) -> int:
    """Parse a signed number; ``flags`` is its base, or 0."""
    return _convert(call, buffer, size, flags, result, is_signed=True)


@python_helper("bpf_strtoul")
def strtoul(call: HelperCall, buffer: int, size: int, flags: int, result: int) -> int:
    """Parse an unsigned number."""
    return _convert(call, buffer, size, flags, result, is_signed=False)


@python_helper("bpf_strcmp")
def strcmp(call: HelperCall, first: int, second: int) -> int:
    """Compare two strings (a kfunc): -1, 0 or 1; -EFAULT for unmapped memory, -E2BIG if neither ends."""
    one, other = call.string(first, XATTR_SIZE_MAX), call.string(second, XATTR_SIZE_MAX)
    if one is None or other is None:
        return -EFAULT
    if one == other:
        return -E2BIG if len(one) == XATTR_SIZE_MAX else 0
    return signed(-1 if one < other else 1)


XATTR_SIZE_MAX = 65536
"""Maximum length that string kfuncs scan."""

HELPERS: tuple[Helper, ...] = (
    *(probe_read_kernel, probe_read_user, probe_read_compat, copy_from_user),
    *(probe_read_kernel_str, probe_read_user_str, probe_read_compat_str),
    *(strncmp, strtol, strtoul, strcmp),
)
