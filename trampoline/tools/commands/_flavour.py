"""Help of the option ``--flavour``: the kernel releases that there are."""

from trampoline.releases import release_names


def flavour_help(default: str, *more: str) -> str:
    """The releases, ``more`` values that the option takes, and its default, as help text."""
    *some, last = (*release_names(), *more)
    return f"{', '.join(some)} or {last} (default: {default})"
