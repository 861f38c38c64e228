"""Callbacks when a vCPU reaches an address, without changing guest text."""

from collections.abc import Callable, Iterable

from unicorn import unicorn_const

from emu.machine.vcpu import Vcpu


def watch_execution(vcpu: Vcpu, addresses: Iterable[int], reached: Callable[[int], None]) -> Callable[[], None]:
    """Call ``reached`` with the address each time one of ``addresses`` is about to be executed; returns a function
    that ends this.

    Runs meanwhile are slower: the engine calls Python at each of the addresses.
    """
    uc = vcpu.uc
    watched = sorted(set(addresses))
    hooks = [
        uc.hook_add(unicorn_const.UC_HOOK_CODE, lambda _uc, address, _size, _data: reached(address), begin=at, end=at)
        for at in watched
    ]
    for at in watched:
        vcpu.text_changed(at, at + 1)

    def end() -> None:
        for hook in hooks:
            uc.hook_del(hook)

    return end
