"""Whatever arrives has an answer, and breaks nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emu.debug import Debugger
from emu.gdb.monitor import Monitor
from emu.gdb.motion import Motion
from emu.gdb.session import GdbSession
from emu.kernel.kernel import Kernel
from emu.kernel.text.entry import EntryLayout
from emu.kernel.text.functions import AssemblyFunctions, FunctionText

WORDS = (
    *("?", "g", "G", "p", "P", "m", "M", "X", "H", "Hg", "Hc", "T", "z0", "Z0", "Z1", "Z2", "Z4", "z2"),
    *("c", "s", "C05", "D", "k"),
    *("qSupported", "qC", "qfThreadInfo", "qThreadExtraInfo", "qXfer:features:read:", "qXfer:threads:read:", "qRcmd"),
    *("vCont;", "vCont?", "bs", "bc", "qSymbol::", "vKill", "QStartNoAckMode", "!", "R", "vMustReplyEmpty"),
)
PIECES = (
    *("", ",", ":", ";", "=", "-1", "0", "1", "2", "ff", "8", "c", "s", "r", "zz", "target.xml"),
    *("ffffffff81000000", "ffffffffffffffff", "10000000000000000"),
)
PACKETS = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda word, rest: (word + "".join(rest)).encode(), st.sampled_from(WORDS),
              st.lists(st.sampled_from(PIECES), max_size=8)),
)  # fmt: skip


@pytest.fixture(scope="module")
def session():
    function = FunctionText("f", "mov eax, 1\nmov eax, 2\npush rax\npop rcx\nret", traceable=False)
    with (
        Kernel(entry=EntryLayout(endbr=False), vcpus=2, functions=(AssemblyFunctions((function,)),)) as kernel,
        Debugger(kernel) as debugger,
    ):
        debugger.call("f", cpu=0)
        debugger.call("f", cpu=1)
        said: list[str] = []
        motion = Motion(debugger, said.append, lambda: False)
        yield GdbSession(debugger, motion, Monitor([], said.append), lambda: None)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PACKETS, max_size=10))
def test_any_packet(session, packets):
    for payload in packets:
        reply = session.answer(payload)
        assert reply is None or isinstance(reply, bytes)
        assert (reply is None) == (payload[:1] == b"k"), payload
    assert session.answer(b"qfThreadInfo") == b"m1,2"
    assert session.answer(b"?").startswith(b"T05thread:")
