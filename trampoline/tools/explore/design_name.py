"""Names of designs in schedule addresses: a name of ``DESIGNS``, or the place of a user's factory."""

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from trampoline.bpf.errors import TrampolineError
from trampoline.designs import DESIGNS, DesignChoice, DesignInfo, design_info


@dataclass(frozen=True, slots=True)
class NamedDesign:
    """``NAME``, ``MODULE:NAME`` or ``FILE:NAME``, followed by ``+METADATA`` if the design has a choice of back ends.

    ``make``: a name of ``DESIGNS``, a DesignInfo, or a factory.
    """

    text: str
    make: DesignChoice
    metadata: str | None = None

    @classmethod
    def of(cls, design: DesignChoice) -> "NamedDesign":
        """Parse the text of a design; for an object, find the text that names its definition.

        Raises TrampolineError if the design is unknown, or its file or module cannot be imported.
        """
        if not isinstance(design, str):
            info = design_info(design)
            if DESIGNS.get(info.name) is info:
                return cls(info.name, info.name)
            name = getattr(info.make, "__qualname__", type(info.make).__qualname__)
            return cls(f"{getattr(info.make, '__module__', '')}:{name}", design)
        where, colon, name = design.rpartition(":")
        base, plus, metadata = (name if colon else design).partition("+")
        if plus and not metadata:
            raise TrampolineError(f"{design}: no metadata back end after '+'")
        if not colon:
            if base not in DESIGNS:
                raise TrampolineError(f"no {design!r}; there are {', '.join(DESIGNS)}, and MODULE:NAME or FILE:NAME")
            return cls(design, base, metadata or None)
        found = getattr(_module(where, design), base, None)
        if not isinstance(found, DesignInfo) and not callable(found):
            raise TrampolineError(f"{design}: {where} has no DesignInfo or factory {base!r}")
        return cls(design, found, metadata or None)

    @property
    def found_by(self) -> str | None:
        """The metadata back end of function lookups; None if unknown."""
        return design_info(self.make).found_by(self.metadata)


def _module(where: str, design: str) -> ModuleType:
    try:
        if where.endswith(".py"):
            return _from_file(Path(where))
        return importlib.import_module(where)
    except Exception as error:
        raise TrampolineError(f"{design}: {where} cannot be imported: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    # The module name depends on the file, so that other processes can import it as well.
    name = f"tramplab_design_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
