"""The interface that docs/debugging.md shows is the one there is; its blocks are run with those of all pages."""

import re

import pytest

from emu.debug import Debugger as KernelDebugger
from emu.debug.inspection import Sight
from paths import ROOT
from trampoline.tools.debugger import BpfDebugger, DebugStop, DebugStopReason

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "debugging.md").read_text()


def test_the_interface_is_what_there_is():
    shown = next(block for block in re.findall(r"```text\n(.*?)```", PAGE, re.S) if block.startswith("class Debugger"))
    methods = set(re.findall(r"def (\w+)\(", shown))
    attributes = set(re.findall(r"^    (\w+): ", shown, re.M)) | {"end"}
    assert all(hasattr(BpfDebugger, name) for name in methods | attributes)
    public = {name for name in (*vars(KernelDebugger), *vars(Sight)) if not name.startswith("_")}
    for_others = {"IS_CACHE", "activations", "addresses_of_phase", "close", "goal", "phases", "rip", "stopped"}
    assert public - for_others <= methods | attributes
    reasons = re.search(r"reason \((.*?)\)", shown)[1]
    assert re.findall(r'"(\w+)"', reasons) == [str(reason) for reason in DebugStopReason]
    assert set(DebugStop._fields) <= set(re.findall(r"\w+", shown[shown.index("class Stop") :]))
