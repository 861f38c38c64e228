"""User-defined mutants, each patched in another way: `tramp mutants --module examples/own_mutant.py`."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

from trampoline.image.tramp_image import BpfTrampImage
from trampoline.tools.mutants import Mutant, mutant, replace, wrap


def put_without_waiting(image: BpfTrampImage) -> None:
    image.discard()


def forgets_the_tail(batch_finish: Any) -> Any:
    """`wrap` passes the old function and installs the returned one."""

    def mutated(poke: Any) -> None:
        poke._queue = [loc._replace(text=loc.text[:1] + b"\x00\x00\x00\x00") for loc in poke._queue]
        batch_finish(poke)

    return mutated


def counts_nothing(modules: Any, name: str) -> None:
    pass


@mutant("no-module-references", bug="861de02e5f3f", mechanism="modules are not held")
def no_module_references() -> Iterator[None]:
    get, put = (mock.patch(f"emu.kernel.module.modules.Modules.{name}", counts_nothing) for name in ("get", "put"))
    with get, put:
        yield


MUTANTS = [
    Mutant(
        "own-image-freed-too-early",
        "e21aa341785c",
        "an image is freed with its site",
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
