import re
import subprocess
from html.parser import HTMLParser

import pytest

from patience import PATIENCE
from trampoline.lab import Workload
from trampoline.tools.bench.bench import bench
from trampoline.tools.icount.baseline import BaselineEntry
from trampoline.tools.icount.counted_path import CountedPath, PhaseCode
from trampoline.tools.report.bench_page import bench_page
from trampoline.tools.report.calls_page import calls_page
from trampoline.tools.report.observed_calls import observe_all

CALL = "bpf_fentry_test1(41)"
_VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Checks that what is opened is closed; keeps texts by class of the element around, and every link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.links: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.elements: list[tuple[str, dict]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [given[name] for name in ("href", "src", "action", "srcset") if name in given]
        self.elements.append((tag, given))
        if tag not in _VOID:
            self.open.append((tag, given.get("class", "")))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.texts.append((self.open[-1][1] or self.open[-1][0], data))

    def of(self, kind):
        return [text for name, text in self.texts if name == kind]


@pytest.fixture(scope="module")
def variants():
    first = {"target": "bpf_fentry_test1", "programs": ("fexit", "fentry"), "calls": (CALL,)}
    return observe_all([Workload(**first), Workload(**first, design="specialised")], stacks=True)


@pytest.fixture(scope="module")
def text(variants):
    return calls_page(variants)


def test_the_stack_is_drawn(variants, text):
    ours = variants[0].calls[0].stack
    assert [frame.function.partition("+")[0] for frame in ours] == [
        "bpf_fentry_test1", "bpf_trampoline_6442450945", "bpf_prog_fentry1",
    ]  # fmt: skip
    drawn = text[text.index('class="stack"') : text.index("</details>", text.index('class="stack"'))]
    slots = re.findall(r'cell">([^<]*)</span><span class="name" role="cell">([^<]*)</span><span[^>]*>([^<]*)<', drawn)
    shown = {name: (place, int(value, 16)) for place, name, value in slots[1:-1]}
    assert (shown["arg1"], shown["nr_args"]) == (("rbp-16", 41), ("rbp-24", 1))
    assert shown["return address"][1] == ours[1]["return address"].value
    assert len(slots) == sum(len(frame.slots) for frame in ours)


def test_looking_at_the_stack_changes_nothing():
    options = Workload("bpf_fentry_test1", calls=(CALL, "bpf_fentry_test1(1)@0"))
    (plain,), (looked,) = observe_all([options]), observe_all([options], stacks=True)
    assert [call.counts for call in plain.calls] == [call.counts for call in looked.calls]
    assert not plain.calls[0].stack
    assert [call.stack[1]["arg1"].value for call in looked.calls] == [41, 1]


def test_a_baseline_beside_it(variants):
    old = CountedPath(200, 3, {"enter": PhaseCode(150, ()), "exit": PhaseCode(50, ())}, {"design": "generic"})
    text = calls_page(variants, {CALL: BaselineEntry(200, 1, old)})
    table = Page(text[: text.index("</table>") + 8].partition('<div class="scroll">')[2])
    assert table.of("n")[:2] == ["baseline (generic)", "per-function"]
    ours = variants[0].calls[0].counts
    assert f'{ours.instructions}<span class="delta less">{ours.instructions - 200}' in text
    assert f'<td class="n">150</td>\n<td class="n">{ours.by_phase["enter"]}<span' in text
    text = calls_page(variants, {CALL: BaselineEntry(200, 1, None)})
    assert '<td class="n soft">?</td>' in text
    assert "<b>baseline" not in calls_page(variants, {"other(1)": BaselineEntry(200, 1, old)})


def test_a_header_that_contradicts_the_count_says_nothing(variants):
    old = CountedPath(3, 0, {"enter": PhaseCode(3, ())})
    text = calls_page(variants, {CALL: BaselineEntry(200, 1, old)})
    assert text.count('<td class="n soft">?</td>') == sum(1 for n in variants[0].calls[0].counts.by_phase.values() if n)


def test_nothing_is_fetched(text):
    assert Page(text).links == ["data:,"]
    assert not re.search(r"https?:|//\w|@import|url\(|fetch|XMLHttp|import\(", text)


def test_every_instruction_has_its_count(variants, text):
    page = Page(text)
    counted = [int(count) for count in page.of("n") if count.isdigit()]
    expected = [row.count for one in variants for code in one.calls[0].code for row in code.rows if row.count]
    listing = text[text.index("<h3>"):]
    assert [int(count) for count in re.findall(r'<td class="n">(\d+)</td>', listing)] == expected
    assert sum(expected) == sum(one.calls[0].counts.instructions for one in variants)
    assert counted
    assert "drop the return address into the traced function" in text


def test_numbers_side_by_side(variants, text):
    ours, theirs = (one.calls[0].counts for one in variants)
    row = re.search(r'exit</th>\s*<td class="n">(\d+)</td>\s*<td class="n">(\d+)<span class="delta less">(-\d+)', text)
    ours_exit, theirs_exit = ours.by_phase["exit"], theirs.by_phase["exit"]
    assert tuple(map(int, row.groups())) == (ours_exit, theirs_exit, theirs_exit - ours_exit)
    assert f"{theirs.instructions} instructions" in text


def test_the_flame_graph_adds_up(variants, text):
    for one, picture in zip(variants, re.findall(r'<svg class="flame".*?\n</svg>', text, re.S), strict=True):
        bars = [tuple(map(int, bar.split(","))) for bar in re.findall(r'data-at="([\d,]+)"', picture)]
        assert bars[0] == (0, one.calls[0].counts.instructions, 0)
        for first, total, depth in bars:
            below = [bar for bar in bars if bar[2] == depth + 1 and first <= bar[0] < first + total]
            assert sum(bar[1] for bar in below) <= total
            starts = [bar[0] for bar in below]
            assert starts == sorted(set(starts))
            assert all(bar[0] + bar[1] <= first + total for bar in below)
        own = [int(count) for count in re.findall(r"<title>[^<]*?, (\d+) of its own", picture)]
        assert sum(own) == one.calls[0].counts.instructions


def test_pictures_have_a_text_beside_them(text):
    page = Page(text)
    pictures = [given for tag, given in page.elements if tag == "svg" and given.get("class") == "flame"]
    assert len(pictures) == 2
    assert all(given["role"] == "img" and "flame graph of" in given["aria-label"] for given in pictures)
    assert "Call chain" in text
    assert 'lang="en"' in text


def test_what_is_in_names_is_text():
    options = Workload("int f(int a)", calls=('f(1)',))
    first = observe_all([options])[0]
    text = calls_page([first])
    assert Page(text)
    hostile = type(first)("<script>alert(1)</script>", first.design, first.flavour, first.config,
                          ('"><img src=x>',), first.calls, first.recording)  # fmt: skip
    page = Page(calls_page([hostile]))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "img" not in [tag for tag, _ in page.elements]


def test_what_a_design_refuses_is_said():
    options = {"target": "int f(int a, int b, int c, int d, int e, int f, int g)"}
    variants = observe_all([Workload(**options), Workload(**options, design="tracing-multi-v2")])
    assert variants[1].error == "EOPNOTSUPP"
    assert "Refused: tracing-multi-v2: EOPNOTSUPP" in calls_page(variants)


def test_a_bench():
    rows = bench(["6.12"], ["voluntary"], designs=["per-function", "tracing-multi-v2"])
    text = bench_page(rows)
    page = Page(text)
    assert page.links == ["data:,"]
    table = text.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = re.findall(r'<td class="n">(\d+)', table)
    assert sorted(map(int, cells)) == sorted(row.instructions for row in rows)
    assert page.of("n")[:2] == ["per-function", "tracing-multi-v2"]
    assert text.count('class="strip"') == len(rows)
    assert text.count("<b>tracing-multi-v2 (hash)</b>") == 4


def test_a_bench_of_a_design_with_a_choice():
    rows = bench(["6.12"], ["voluntary"], designs=["specialised"], program="full")
    page = Page(bench_page(rows))
    ways = list(dict.fromkeys(row.metadata for row in rows))
    assert len(ways) > 1
    assert page.of("n")[: len(ways)] == [f"specialised, {way}" if way else "specialised" for way in ways]
    table = page.of("n")[len(ways) :]
    assert sum(text.isdigit() for text in table) == len(rows)


def chromium(tool, tmp_path, page, *options):
    """Standard output and the console's lines."""
    path = tmp_path / "page.html"
    path.write_text(page)
    quiet = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--enable-logging=stderr",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
    )  # fmt: skip
    command = [tool("chromium"), *quiet, *options, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


PROBE = """
<script>
addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll(".flame .bar")].filter((bar) => !bar.classList.contains("gone"));
  const before = shown().length;
  const bar = [...document.querySelectorAll(".flame .bar")].find((one) => one.textContent.includes("[exit]"));
  bar.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const wide = bar.getBoundingClientRect().width / bar.closest(".flame").getBoundingClientRect().width;
  const caption = bar.closest("figure").querySelector("figcaption").textContent;
  const during = shown().length;
  bar.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const fits = document.documentElement.scrollWidth <= innerWidth;
  const labels = [...document.querySelectorAll(".flame .bar:not(.gone):not(.small)")].length;
  document.title = [fits, during < before, shown().length === before, wide > 0.99, labels > 5, caption].join("|");
});
</script>
"""


@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser(text, tool, tmp_path, width):
    dom, console = chromium(
        tool, tmp_path, text.replace("</body>", PROBE + "</body>"), "--dump-dom", f"--window-size={width},800"
    )
    assert console == []
    title = re.search(r"<title>(.*?)</title>", dom)[1]
    assert title.startswith("true|true|true|true|true|[exit]: 82 instructions (41.4%)")


def test_a_bench_in_a_browser(tool, tmp_path):
    page = bench_page(bench(["6.12"], ["voluntary"], designs=["per-function", "specialised"]))
    probe = "<script>document.title = document.documentElement.scrollWidth <= innerWidth</script></body>"
    dom, console = chromium(tool, tmp_path, page.replace("</body>", probe), "--dump-dom", "--window-size=360,800")
    assert console == []
    assert "<title>true</title>" in dom
