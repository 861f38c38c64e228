"""``tramp gdb``: a target for gdb's remote protocol."""

import argparse
from pathlib import Path
from typing import Any

from trampoline.tools.commands._options import add_workload, whole, workload_of


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "gdb",
        help="serve a function's trampoline to gdb",
        description="Attach programs to a function and wait for gdb: each call is a thread, stopped before its first"
        " instruction. Prints the gdb command to copy. Ctrl-C ends it.",
    )
    add_workload(parser)
    parser.add_argument(
        "--port", type=whole("port: 0 to 65535", most=65535), default=0, metavar="N",
        help="port to listen on (default: 0, a free one, which is printed)",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1 (default) or ::1; no other is allowed"
    )
    parser.add_argument(
        "--symbols", type=Path, metavar="FILE", help="path of the symbol file (default: a temporary file)"
    )
    parser.add_argument("--once", action="store_true", help="end when the first gdb disconnects")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C; with --once, until the first gdb disconnects."""
    import signal
    import sys

    from trampoline.tools.debugger.gdb_server import serve

    # SIGTERM must not prevent the removal of the temporary file.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        serve(
            workload_of(arguments),
            host=arguments.host,
            port=arguments.port,
            symbols=arguments.symbols,
            once=arguments.once,
            tell=lambda line: print(line, flush=True),
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0
