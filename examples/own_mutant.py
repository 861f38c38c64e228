"""Mutants of one's own, each patched in another way: `tramp mutants --module examples/own_mutant.py`."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

from trampoline.image.tramp_image import BpfTrampImage
from trampoline.tools.mutants import Mutant, mutant, replace, wrap


def put_without_waiting(image: BpfTrampImage) -> None:
    image.discard()


def forgets_the_tail(batch_finish: Any) -> Any:
    """What `wrap` gets is what was there; what it gives takes its place."""

    def mutated(poke: Any) -> None:
        poke._queue = [loc._replace(text=loc.text[:1] + b"\x00\x00\x00\x00") for loc in poke._queue]
        batch_finish(poke)

    return mutated


def counts_nothing(modules: Any, name: str) -> None:
    pass


@mutant("no-module-references", bug="B11", mechanism="nobody holds a module")
def no_module_references() -> Iterator[None]:
    get, put = (mock.patch(f"emu.kernel.module.modules.Modules.{name}", counts_nothing) for name in ("get", "put"))
    with get, put:
        yield


MUTANTS = [
    Mutant(
        "own-image-freed-too-early",
        "B1",
        "an image goes with its site",
        replace("trampoline.image.tramp_image.BpfTrampImage.put", put_without_waiting),
    ),
    Mutant(
        "own-tail-forgotten",
        "-",
        "the displacement of a patched call is 0",
        wrap("emu.kernel.text.text_poke.TextPoke.batch_finish", forgets_the_tail),
    ),
    no_module_references,
]
