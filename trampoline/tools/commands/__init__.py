"""The subcommands of `tramp`, one module each.

A module here is a subcommand of the same name. It gives `add_parser(subparsers)`, which describes its arguments, and
`run(arguments) -> int`, the exit status: 0, 1 for differences found, 3 for paths that got longer. What it works with is
imported inside `run`, so that `tramp --help` loads no engine. A module whose name begins with an underscore is not a
subcommand.
"""
