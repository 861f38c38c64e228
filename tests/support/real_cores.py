"""Folder of memory images of real kernels. None is in the repository."""

import os
from pathlib import Path

from paths import ROOT

CORES = Path(os.environ.get("TRAMPLAB_CORES", ROOT.parent / "shared" / "cores"))
HOW = "no memory images: put ELF cores into ../shared/cores (mini, expected), or set TRAMPLAB_CORES to where they are"
