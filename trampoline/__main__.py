"""`python -m trampoline`: the `tramp` command."""

import sys

from trampoline.tools.cli import main

sys.exit(main())
