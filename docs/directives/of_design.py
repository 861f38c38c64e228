"""What the drawings of a design have in common: a traced function, a program on it, and the figure."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from trampoline.bpf.prog import NOTHING, Uses
from trampoline.lab import Lab

TRACED, OTHER, ARGUMENTS = "bpf_fentry_test2", "bpf_fentry_test1", (2, 3)


@dataclass(frozen=True, slots=True)
class Attached:
    """A program on TRACED, and on OTHER too where it is a multi link's."""

    design: str
    kind: str = "fentry"
    flavour: str = "6.12"
    config: str = "voluntary"
    multi: bool = False

    def __str__(self) -> str:
        return f"{self.kind}, {self.design}, kernel {self.flavour}, {self.config}"

    @contextmanager
    def lab(self, uses: Uses = NOTHING) -> Iterator[Lab]:
        """A laboratory where it is attached."""
        with Lab(self.flavour, self.config, design=self.design) as lab:
            kind = f"{self.kind}_multi" if self.multi else self.kind
            prog = lab.prog(kind, "xor eax, eax\nret", name="prog", uses=uses)
            if self.multi:
                lab.attach_multi(prog, [OTHER, TRACED], cookies=[1, 2])
            else:
                lab.attach(prog, TRACED)
            yield lab


class OfDesign(Directive, ABC):
    """The argument is a design; options choose kind, kernel and configuration, and a link on two functions."""

    required_arguments = 1
    option_spec: ClassVar = {
        "kind": directives.unchanged_required,
        "flavour": directives.unchanged_required,
        "config": directives.unchanged_required,
        "multi": directives.flag,
    }

    @abstractmethod
    def drawn(self, attached: Attached) -> tuple[str, str]:
        """The drawing as SVG, and its caption."""

    def run(self) -> list[nodes.Node]:
        """A figure."""
        chosen = {name: value for name, value in self.options.items() if name != "multi"}
        svg, caption = self.drawn(Attached(self.arguments[0], multi="multi" in self.options, **chosen))
        figure = nodes.figure()
        figure += nodes.raw("", svg, format="html")
        figure += nodes.caption("", caption)
        return [figure]
