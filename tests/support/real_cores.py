"""Where memory images of real kernels are: none is in the repository."""

import os
from pathlib import Path

CORES = Path(os.environ.get("TRAMPLAB_CORES", Path(__file__).resolve().parents[2] / "shared" / "cores"))
HOW = "no memory images: put ELF cores into ../shared/cores (mini, expected), or set TRAMPLAB_CORES to where they are"
