"""`python -m trampoline`: the `tramp` command."""

import sys

from trampoline.cli import main

sys.exit(main())
