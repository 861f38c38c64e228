"""Bugs of ftrace and direct callers: registration, change, sharing with livepatch, removal."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EAGAIN
from typing import Any

from emu.kernel.errors import KernelError
from emu.kernel.ftrace.direct import Ftrace
from emu.kernel.ftrace.guest_data import GuestOps
from emu.kernel.ftrace.ops import FtraceOps, FtraceOpsCmd, FtraceOpsFlag
from trampoline.tools.mutants.mutant import Mutant
from trampoline.tools.mutants.patch import replace, wrap
from trampoline.update.bpf_trampoline import BpfTrampoline, TrampolineUpdate
from trampoline.update.ftrace_sites import OpsEach

_FTRACE = "emu.kernel.ftrace.direct.Ftrace"
_TRACER = "emu.kernel.ftrace.registration.FunctionTracer"


def _assign_entries_only(ftrace: Ftrace, ops: FtraceOps, entries: Mapping[int, int], direct_call: int) -> None:
    """``Ftrace._assign`` without the update of the ops' own address."""
    ftrace._guest.change_direct(entries)
    ftrace.direct_functions.update(entries)
    ftrace._guest.refresh(ops)


def _modify(*, negotiates: bool, restores: bool) -> Callable[..., None]:
    """``Ftrace._modify``, with or without the livepatch negotiation, and the old addresses after a failure."""

    def mutated(ftrace: Ftrace, ops: FtraceOps, entries: Mapping[int, int], direct_call: int) -> None:
        before = ({ip: ftrace.direct_functions[ip] for ip in entries}, ops.direct_call)
        stub = FtraceOps(f"stub beside {ops.name}", "ftrace_stub", FtraceOpsFlag.STUB, filter=set(entries))
        ftrace._register(stub)
        try:
            if negotiates:
                ftrace._negotiate_ipmodify(ops, entries)
            ftrace._assign(ops, entries, direct_call)
            try:
                ftrace._unregister(stub)
            except BaseException:
                if restores:
                    ftrace._assign(ops, *before)
                raise
        except BaseException:
            ftrace._unregister(stub)
            raise

    return mutated


def _modify_with_a_gap(ftrace: Ftrace, ops: FtraceOps, entries: Mapping[int, int], direct_call: int) -> None:
    """Remove the old address, then add the new one."""
    with ftrace.ftrace_lock:
        ftrace._update(entries.keys(), ftrace.direct_functions, leave=ops)
        ftrace._assign(ops, entries, direct_call)
        ftrace._update(entries.keys(), ftrace.direct_functions, enter=ops)


def _leaves_entries(register: Callable[..., None]) -> Callable[..., None]:
    def mutated(ftrace: Ftrace, ops: FtraceOps, address: int) -> None:
        try:
            register(ftrace, ops, address)
        except KernelError as error:
            if error.errno == EAGAIN:
                ftrace._add_direct(dict.fromkeys(ops.filter, address))
            raise

    return mutated


def _switch_in_place(trampoline: BpfTrampoline, lock_direct_mutex: bool) -> TrampolineUpdate | None:
    """``_try_switch`` whose second attempt writes into the image of the first, which is read-only by then."""
    update = trampoline.prepare()
    try:
        trampoline._apply(update, lock_direct_mutex)
    except BaseException as error:
        again = isinstance(error, KernelError) and error.errno == EAGAIN
        if again and update.new is not None:
            machine = trampoline._kernel.machine
            machine.write(update.new.image, machine.read(update.new.image, 16))
        trampoline.abandon(update, seen=not again)
        if again:
            return None
        raise
    return update


def _register_whatever_the_filter(sites: OpsEach, trampoline: BpfTrampoline, ip: int, direct: int) -> None:
    ops = FtraceOps(f"bpf_trampoline of {trampoline.target.name}", ops_func=trampoline.share_ipmodify)
    with suppress(KernelError):
        sites._ftrace.ftrace_set_filter_ip(ops, ip)
    sites._ftrace.register_ftrace_direct(ops, direct)
    sites._ops[ip] = ops


def _set_direct_at_once(guest: GuestOps, direct: Mapping[int, int], *, replaces: bool) -> None:
    """Free the old hash as soon as the new one is published."""
    if not guest._live:
        return
    old = guest._direct
    guest._write_direct(direct)
    guest._machine.write_u64(guest._pointer("direct_functions"), guest._direct)
    if old:
        guest._slab.free(old)


def _unregister_at_once(ftrace: Ftrace, ops: FtraceOps) -> None:
    with ftrace.direct_mutex:
        sites = sorted(ops.sites)
        with ftrace.ftrace_lock:
            free = ftrace._shutdown(ops)
            if free is not None:
                free()
        ftrace._dismiss_direct_callers(ops, sites)


def _no_notification(ftrace: Ftrace, ops: FtraceOps) -> list[int]:
    return []


def _waits_for_the_lock(share: Callable[..., None]) -> Callable[..., None]:
    def mutated(trampoline: BpfTrampoline, ops: FtraceOps, ip: int, cmd: FtraceOpsCmd) -> None:
        if cmd is not FtraceOpsCmd.ENABLE_SHARE_IPMODIFY_SELF:
            with trampoline.mutex:
                pass
        share(trampoline, ops, ip, cmd)

    return mutated


def _keeps_added_sites(sites: Any, batch: Any, trampolines: Mapping[int, BpfTrampoline]) -> None:
    """``SingleOps.apply`` without rollback."""
    if batch.added:
        sites._by_ip.update({ip: trampolines[ip] for ip in batch.added})
        try:
            sites._ftrace.update_ftrace_direct_add(sites._ops, batch.added)
        except BaseException:
            sites._forget(batch.added)
            raise
    if batch.removed:
        sites._ftrace.update_ftrace_direct_del(sites._ops, batch.removed)
    if batch.modified:
        sites._ftrace.update_ftrace_direct_mod(sites._ops, batch.modified)
    sites._forget(batch.removed)


MUTANTS = (
    Mutant(
        "modify-forgets-the-address",
        "8a141dd7f706",
        "modify_ftrace_direct keeps the old address in the ops, so that unregistering with the new one fails",
        replace(f"{_FTRACE}._assign", _assign_entries_only),
    ),
    Mutant(
        "modify-keeps-the-address-on-failure",
        "2a2d8c51defb",
        "modify_ftrace_direct keeps the new address after patching has failed",
        replace(f"{_FTRACE}._modify", _modify(negotiates=True, restores=False)),
    ),
    Mutant(
        "modify-skips-sharing",
        "3e9a18e1c3e9",
        "modify_ftrace_direct does not check for a livepatch on the site, so its replacement is not called",
        replace(f"{_FTRACE}._modify", _modify(negotiates=False, restores=True)),
    ),
    Mutant(
        "modify-leaves-a-gap",
        "ftrace.c:__modify_ftrace_direct()",
        "modify_ftrace_direct removes the old address before it adds the new one: calls in between run no program",
        replace(f"{_FTRACE}._modify", _modify_with_a_gap),
    ),
    Mutant(
        "entries-stay-after-eagain",
        "56b3c85e153b",
        "an attempt that fails with -EAGAIN leaves its entries in direct_functions: the next one gets -EBUSY",
        wrap(f"{_FTRACE}.register_ftrace_direct", _leaves_entries),
    ),
    Mutant(
        "image-written-again",
        "introduced by 00963a2e75a8",
        "the attempt after livepatch's -EAGAIN writes into the image of the first, which is read-only",
        replace("trampoline.update.bpf_trampoline.BpfTrampoline._try_switch", _switch_in_place),
    ),
    Mutant(
        "filter-error-ignored",
        "introduced by 00963a2e75a8",
        "a trampoline's ops is registered although setting its filter failed",
        replace("trampoline.update.ftrace_sites.OpsEach.register", _register_whatever_the_filter),
    ),
    Mutant(
        "direct-hash-freed-in-use",
        "d05cb470663a",
        "the old direct_functions hash is freed while readers still walk it",
        replace("emu.kernel.ftrace.guest_data.GuestOps.set_direct", _set_direct_at_once),
    ),
    Mutant(
        "ops-freed-in-use",
        "0e792b89e680",
        "an ops and its trampoline are freed without waiting for tasks that run its callback",
        replace(f"{_TRACER}.unregister_ftrace_function", _unregister_at_once),
    ),
    Mutant(
        "livepatch-asks-nobody",
        "ftrace.c:prepare_direct_functions_for_ipmodify()",
        "livepatch does not notify the direct caller of its site, which keeps calling the old function",
        replace(f"{_TRACER}._ask_direct_callers", _no_notification),
    ),
    Mutant(
        "livepatch-waits-for-the-lock",
        "trampoline.c:bpf_tramp_ftrace_ops_func()",
        "livepatch waits for the trampoline's mutex while it holds direct_mutex: the lock order is reversed",
        wrap("trampoline.update.bpf_trampoline.BpfTrampoline.share_ipmodify", _waits_for_the_lock),
    ),
    Mutant(
        "added-sites-stay",
        "trampoline.c:bpf_trampoline_multi_attach()",
        "a batch that cannot modify its sites keeps those that it has added",
        replace("trampoline.update.ftrace_sites.SingleOps.apply", _keeps_added_sites),
    ),
)
