"""Lists of threads for gdb."""

from collections.abc import Sequence
from xml.etree import ElementTree

from emu.threads.thread import Thread


def extra_info(thread: Thread) -> str:
    """Text next to a thread's name in ``info threads``."""
    return thread.state


def threads_xml(threads: Sequence[Thread]) -> bytes:
    """Content of ``qXfer:threads:read``: "Thread List Format" in gdb's manual."""
    root = ElementTree.Element("threads")
    for thread in threads:
        entry = ElementTree.SubElement(root, "thread", id=f"{thread.number:x}", name=thread.name)
        if thread.cpu is not None:
            entry.set("core", str(thread.cpu))
        entry.text = extra_info(thread)
    return b'<?xml version="1.0"?>\n' + ElementTree.tostring(root)
