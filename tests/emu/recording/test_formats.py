"""What is written, against the schemas and tools that read it."""

import json
import re
import subprocess

import jsonschema
import pytest

from asm.encodings import jmp_rel32
from emu.recording import record
from emu.recording.export import callgrind, chrome, collapsed, speedscope
from paths import FIXTURES

FIXTURES = FIXTURES / "recording"


@pytest.fixture
def recording(boot):
    """Two vCPUs that take turns, a task that sleeps, a host call that calls, text that is patched."""
    traced = boot(vcpus=2)
    kernel, (first, second) = traced.kernel, traced.machine.vcpus
    traced.host("nest", lambda vcpu: vcpu.call(kernel.kallsyms.address("leaf")).value)
    traced.place(leaf="mov eax, 4\nret", f="push rbx\ncall nest\ncall leaf\ncall schedule\ncall leaf\npop rbx\nret")
    tasks = [kernel.task(name, "f") for name in ("a;b c", "other")]
    site = kernel.function("bpf_fentry_test1").site
    with record(kernel) as recording:
        for vcpu, task in zip((first, second), tasks, strict=True):
            vcpu.switch_to(task)
        for vcpu in (first, second):
            for _ in range(5):
                vcpu.advance(1)
        first.advance()
        second.advance()
        kernel.text_poke.text_poke_bp(site, jmp_rel32(site, site + 5))
        for task, vcpu in zip(tasks, (second, first), strict=True):
            task.wake()
            vcpu.run(task)
        kernel.call("bpf_fentry_test1", 1)
    assert recording.instructions == 2 * (7 + 1 + 2 + 2 + 1 + 2) + 3
    return recording


def test_chrome(recording):
    trace = json.loads(chrome.trace(recording, "a run"))
    jsonschema.validate(trace, json.loads((FIXTURES / "trace-event.schema.json").read_text()))
    open_: dict[int, list[dict]] = {}
    clock = own = 0
    took: dict[str, int] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= clock
        clock = event["ts"]
        here = open_.setdefault(event["tid"], [])
        if event["ph"] == "B":
            here.append(event)
        elif event["ph"] == "E":
            began = here.pop()
            assert (began["name"], began["cat"]) == (event["name"], event["cat"])
            if not here:
                own += event["tts"] - began["tts"]
                took[began["name"]] = took.get(began["name"], 0) + event["tts"] - began["tts"]
    assert not any(open_.values())
    assert (clock, own) == (recording.instructions,) * 2
    assert took == {"a;b c": 15, "other": 15, "bpf_fentry_test1": 3}
    names = {(event["tid"], event["args"]["name"]) for event in trace["traceEvents"]
             if event.get("name") == "thread_name"}  # fmt: skip
    assert names == {(0, "vCPU 0"), (1, "vCPU 1"), (2, "process context")}
    marks = [(event["name"], event["tid"]) for event in trace["traceEvents"] if event["ph"] == "i"]
    assert marks == [
        (name, tid) for phase in ("INT3", "TAIL", "FIRST BYTE")
        for name, tid in ((f"text patched: {phase}", 2), ("cpu serialized", 0), ("cpu serialized", 1))
    ]  # fmt: skip


def test_speedscope(recording):
    whole = json.loads(speedscope.profile(recording, "a run"))
    jsonschema.validate(whole, json.loads((FIXTURES / "speedscope.schema.json").read_text()))
    assert [profile["endValue"] for profile in whole["profiles"]] == recording.executed
    for profile in whole["profiles"]:
        open_, at = [], 0
        for event in profile["events"]:
            assert at <= event["at"] <= profile["endValue"]
            at = event["at"]
            if event["type"] == "O":
                open_.append(event["frame"])
            else:
                assert open_.pop() == event["frame"]
        assert not open_


def test_collapsed(recording):
    counts = {}
    for line in collapsed.stacks(recording).splitlines():
        path, count = re.fullmatch(r"([^ ]+) (\d+)", line).groups()
        assert path not in counts
        counts[path] = int(count)
    assert sum(counts.values()) == recording.instructions
    assert counts["a:b_c;f;leaf"] == 4
    assert counts["a:b_c;f;nest;leaf"] == 2


def annotate(tool, tmp_path, recording, *options):
    profile = callgrind.profile(recording, "a run", "run.lst")
    (tmp_path / "run").write_text(profile.text)
    (tmp_path / "run.lst").write_text(profile.listing)
    command = [tool("callgrind_annotate"), "--show-percs=no", "--threshold=100", *options, "run"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert not done.stderr
    return done.stdout


def by_function(printed):
    shown = re.findall(r"^ *([\d,]+) +run\.lst:(.+)$", printed, re.M)
    return {name: int(count.replace(",", "")) for count, name in shown}


def test_callgrind(recording, tool, tmp_path):
    printed = annotate(tool, tmp_path, recording, "--auto=no")
    assert re.search(rf"^ *{recording.instructions} +PROGRAM TOTALS", printed, re.M)
    shown = {name: count for name, count in by_function(printed).items() if count}
    assert shown == recording.counts.by_function


def test_callgrind_inclusive_costs(recording, tool, tmp_path):
    printed = annotate(tool, tmp_path, recording, "--auto=no", "--inclusive=yes")
    totals = by_function(printed)
    assert {name: totals[name] for name in ("a;b c", "f", "nest")} == {"a;b c": 15, "f": 30, "nest": 6}


def test_callgrind_counts_recursion_once(traced, tool, tmp_path):
    traced.place(f="test edi, edi\nje .Lend\ndec edi\ncall f\n.Lend: ret")
    with record(traced.kernel) as recording:
        traced.kernel.call("f", 3)
    printed = annotate(tool, tmp_path, recording, "--auto=no", "--inclusive=yes")
    assert by_function(printed)["f"] == recording.instructions == 18


def test_callgrind_shows_the_listing_with_counts(recording, tool, tmp_path):
    printed = annotate(tool, tmp_path, recording, "--auto=yes")
    source = printed.partition("Auto-annotated source: run.lst")[2]
    counted = re.findall(r"^ *(\d+) +[0-9a-f]{2,} +(\S.*)$", source, re.M)
    assert ("2", "push rbx") in counted
    assert sum(int(count) for count, _ in counted) == recording.instructions
    assert re.search(r"^ *4 +=> run\.lst:leaf \(2x\)$", source, re.M)
