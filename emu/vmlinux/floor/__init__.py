"""The lowest layer of an unbooted kernel, by kernel name: what the host stands for, one file a group.

Everything above these functions is the kernel's own code. Names that a release lacks are left out. What is reached and
is neither here nor able to run ends in a typed error with its name and callers.
"""

from emu.vmlinux.floor import absent, deferred, files, memory, percpu, printk, rcu, scheduler, text, time
from emu.vmlinux.floor.table import Constant, Group, Host, Native

__all__ = ["GROUPS", "Constant", "Group", "Host", "Native"]

GROUPS: tuple[Group, ...] = (
    memory.GROUP,
    percpu.GROUP,
    text.GROUP,
    rcu.GROUP,
    deferred.GROUP,
    scheduler.GROUP,
    scheduler.OTHER_CPUS,
    time.GROUP,
    printk.GROUP,
    files.GROUP,
    absent.GROUP,
)
