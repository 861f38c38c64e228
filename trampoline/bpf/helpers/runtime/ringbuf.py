"""Ring buffer helpers (kernel/bpf/ringbuf.c)."""

from errno import EAGAIN, EINVAL

from emu.kernel.errors import KernelError
from trampoline.bpf.helpers.runtime.definition import Helper, HelperCall, python_helper
from trampoline.bpf.maps.ringbuf import FORCE_WAKEUP, NO_WAKEUP, RingBuffer


def _buffer(call: HelperCall, address: int) -> RingBuffer:
    found = call.runtime.maps.at(address)
    if not isinstance(found, RingBuffer):
        raise KernelError(EINVAL, f"{found.name} is not a ring buffer")
    return found


def _of_sample(call: HelperCall, sample: int) -> RingBuffer:
    """The ring buffer that contains a record."""
    for found in call.runtime.maps:
        if isinstance(found, RingBuffer) and 0 <= sample - found.data < 2 * found.spec.max_entries:
            return found
    raise KernelError(EINVAL, f"no ring buffer is at {sample:#x}")


@python_helper("bpf_ringbuf_reserve")
def reserve(call: HelperCall, address: int, size: int, flags: int) -> int:
    """Reserve room for a record; NULL if none is left."""
    return 0 if flags else _buffer(call, address).reserve(size)


@python_helper("bpf_ringbuf_submit")
def submit(call: HelperCall, sample: int, flags: int) -> int:
    """Commit a record."""
    _of_sample(call, sample).commit(sample, flags, discard=False)
    return 0


@python_helper("bpf_ringbuf_discard")
def discard(call: HelperCall, sample: int, flags: int) -> int:
    """Discard a record."""
    _of_sample(call, sample).commit(sample, flags, discard=True)
    return 0


@python_helper("bpf_ringbuf_output")
def output(call: HelperCall, address: int, data: int, size: int, flags: int) -> int:
    """Copy a record: -EINVAL for unknown flags, -EAGAIN if no room is left."""
    if flags & ~(NO_WAKEUP | FORCE_WAKEUP):
        return -EINVAL
    found = _buffer(call, address)
    record = found.reserve(size)
    if not record:
        return -EAGAIN
    call.write(record, call.read(data, size))
    found.commit(record, flags, discard=False)
    return 0


@python_helper("bpf_ringbuf_query")
def query(call: HelperCall, address: int, flags: int) -> int:
    """Sizes and positions of a buffer."""
    return _buffer(call, address).query(flags)


HELPERS: tuple[Helper, ...] = (reserve, submit, discard, output, query)
