"""A compiled program from its object: attached, called, its variables, maps and trace read."""

from pathlib import Path

from trampoline.bpf.objects.bpf_object import BpfObject
from trampoline.lab import Lab

OBJECT = Path(__file__).with_name("watch_calls.o")


def watch(design: str) -> None:
    with Lab("7.2", design=design) as lab, lab.open(BpfObject.open(OBJECT), data={"at_least": 16}) as watcher:
        watcher.attach_all()
        for first in (1, 11):
            call = lab.call("bpf_fentry_test5", *range(first, first + 5))
            if call.counts is not None:
                print(f"{design}: returned {call.value} after {call.counts.instructions} instructions")
        print(f"  seen {watcher.data['seen']}, recorded {watcher.data['recorded']}: {dict(watcher.maps['by_result'])}")
        for line in lab.trace:
            print(f"  {line.text}")


def main() -> None:
    for design in ("per-function", "specialised"):
        watch(design)


if __name__ == "__main__":
    main()
