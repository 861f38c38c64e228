"""The subcommands of `tramp`, one module each.

A module here is a subcommand of the same name. It has `add_parser(subparsers)`, which adds its arguments, and
`run(arguments) -> int`, the exit status: 0, 1 for differences, 3 for longer paths. Its dependencies are
imported inside `run`, so that `tramp --help` loads no engine. A module whose name starts with an underscore is not a
subcommand.
"""
