"""Checks of links on trampolines: TRACING, LSM and EXT programs (kernel/bpf/{syscall,trampoline}.c)."""

from errno import E2BIG, EBUSY, EINVAL

from trampoline.bpf.errors import ENOTSUPP
from trampoline.bpf.program import BpfProgram
from trampoline.bpf.uapi import AttachType, ProgType
from trampoline.bpf.verifier.load.bpf_prog_load import VerifiedLoad
from trampoline.bpf.verifier.load.links.link import KernelLinks, refuse, site_of

_TRAMPOLINE_KINDS: dict[int, frozenset[int]] = {
    ProgType.TRACING: frozenset(
        {AttachType.TRACE_FENTRY, AttachType.TRACE_FEXIT, AttachType.MODIFY_RETURN, AttachType.TRACE_FSESSION}
    ),
    ProgType.LSM: frozenset({AttachType.LSM_MAC}),
    ProgType.EXT: frozenset({AttachType.NONE}),
}
"""Expected attach types that ``bpf_tracing_prog_attach`` accepts."""


def attach(links: KernelLinks, loaded: VerifiedLoad) -> None:
    """``bpf_tracing_prog_attach``, ``__bpf_trampoline_link_prog``. Raises VerifierError."""
    program = loaded.program
    site = site_of(loaded)
    if site is None or program.attach not in _TRAMPOLINE_KINDS[program.prog_type]:
        refuse(EINVAL, "programs of this attach type are not attached to a trampoline")
    if program.prog_type == ProgType.EXT:
        if site in links.extensions or links.programs[site]:
            refuse(EBUSY, "the function is already replaced or traced")
        links.extensions.add(site)
        return
    if site in links.extensions:
        refuse(EBUSY, "the function is replaced by an extension")
    weight = _weight(program)
    if links.programs[site] + weight > links.rules.max_links:
        refuse(E2BIG, f"{links.programs[site]} programs are already attached")
    _check_trampoline(links, loaded)
    links.programs[site] += weight


def detach(links: KernelLinks, loaded: VerifiedLoad) -> None:
    """Remove the link that ``attach`` made for a program."""
    if (site := site_of(loaded)) is None:
        return
    if loaded.program.prog_type == ProgType.EXT:
        links.extensions.discard(site)
    else:
        links.programs[site] = max(0, links.programs[site] - _weight(loaded.program))


def _check_trampoline(links: KernelLinks, loaded: VerifiedLoad) -> None:
    """Check image creation, then patching of the site."""
    target = loaded.target
    assert target is not None
    if target.model is not None and target.model.nr_regs > links.rules.max_slots:
        refuse(ENOTSUPP, f"{target.name} needs {target.model.nr_regs} argument slots")
    if target.prog is not None:
        return
    if target.name in links.kernel.names("init_text"):
        refuse(EINVAL, f"{target.name} was freed after boot")
    if target.name in links.kernel.names("no_site"):
        refuse(EBUSY, f"{target.name} has no patch site")


def _weight(program: BpfProgram) -> int:
    return 2 if program.attach == AttachType.TRACE_FSESSION else 1
