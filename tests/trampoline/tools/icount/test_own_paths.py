"""The bench's paths of every design, kernel and configuration take exactly what the baseline beside this file says.

What changes them on purpose updates it: ``pytest --icount-update tests/trampoline/tools/icount/test_own_paths.py``.
"""

import pytest
from kernel_releases import RELEASES

from emu.kernel.config import CONFIGS
from trampoline.designs import DESIGNS
from trampoline.tools.icount.bench_paths import Selection


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("flavour", RELEASES)
def test_every_row(icount, flavour, config, design):
    # What a second program adds does not depend on how a kernel preempts.
    programs = (1, 2) if config == "voluntary" else (1,)
    icount.check_all(Selection([flavour], [config], [design], programs=programs).paths())


@pytest.mark.parametrize("flavour", RELEASES)
def test_with_every_way_to_look_metadata_up(icount, flavour):
    icount.check_all(Selection([flavour], ["none"], ["specialised"], full=True).paths())
