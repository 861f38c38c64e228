"""What the kernel does to a verified program before it is compiled: the JIT's true input."""

from trampoline.rewrite.environment import Environment
from trampoline.rewrite.errors import RewriteError
from trampoline.rewrite.flavour import REWRITE_FLAVOURS, RewriteFlavour
from trampoline.rewrite.link import RewrittenFunc, RewrittenProgram
from trampoline.rewrite.rewrite import rewrite

__all__ = [
    "REWRITE_FLAVOURS",
    "Environment",
    "RewriteError",
    "RewriteFlavour",
    "RewrittenFunc",
    "RewrittenProgram",
    "rewrite",
]
