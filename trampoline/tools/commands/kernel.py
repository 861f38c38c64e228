"""``tramp kernel``: a real kernel's file, or a memory image of a machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trampoline.tools.commands._options import add_image, open_chosen, print_json

if TYPE_CHECKING:
    from trampoline.tools.kernel.facts import KernelFacts


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "kernel",
        help="say what a real kernel has, or what is attached in a memory image",
        description="Of a kernel's file: release, configuration that matters, sites, ways in, what of the floor it"
        " lacks. Of a memory image (ELF core, kdump): what is attached where as well.",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="vmlinuz, vmlinux, an unpacked package, a memory image")
    parser.add_argument("--listing", action="store_true", help="of a memory image: the code of each trampoline")
    add_image(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Open, gather, print."""
    from trampoline.tools.kernel.facts import facts

    with open_chosen(arguments.path, arguments.cpu, arguments.task) as kernel:
        found = facts(kernel, with_listing=arguments.listing)
    if arguments.json:
        print_json(found.to_json())
    else:
        print_facts(found)
    return 0


def print_facts(found: "KernelFacts") -> None:
    """Everything as lines."""
    print(f"{found.path}: Linux {found.release}, {found.kind}")
    if found.configuration is not None:
        print("configuration: " + ", ".join(
            name if value == "y" else f"{name}={value}" for name, value in found.configuration.items()
        ))  # fmt: skip
    if found.sites is not None:
        print(f"sites: {found.sites['functions']} functions that ftrace can patch, {found.sites['patched']} patched")
    if found.floor is not None:
        lacks = ", ".join(found.floor["missing"]) or "none"
        print(f"floor: {found.floor['replaced']} functions replaced; the kernel has no {lacks}")
        for name, result in found.floor["failed"].items():
            print(f"  {name}: {result}")
    if found.ways is not None:
        print("ways in")
        for way, refused in found.ways.items():
            print(f"  {way:17}{refused or 'yes'}")
    if found.current is not None:
        print(f"CPU {found.current['cpu']} ran {found.current['name']} (pid {found.current['pid']})")
    for line in found.log:
        print(f"  log: {line}")
    if found.kind == "memory image":
        print(f"attached: {len(found.attachments)}")
    for one in found.attachments:
        program = one["program"]
        leads = f" -> {one['trampoline']:#x} {one['trampoline_name']}" if one["trampoline"] is not None else ""
        link = "" if one["link"] is None else f", link {one['link']}"
        what = f"{program['name']} (program {program['id']}, tag {program['tag']}{link})"
        print(f"  {one['target']} {one['way']}: {what}{leads}")
        for line in one.get("listing", ()):
            print(f"    {line}")
    for gap in found.gaps:
        print(f"not known: {gap}")
