"""Patches: what a mutant does to the code, put in when a block begins and taken out again when it ends.

A patch is anything with ``__enter__`` and ``__exit__`` (a ``replace`` of this module, ``unittest.mock.patch``), or a
function without parameters that gives such a thing, is a generator with one ``yield``, or just does it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any, cast

from trampoline.bpf.errors import TrampolineError

Patch = AbstractContextManager[Any] | Callable[[], Any]
"""See the module."""

_PACKAGES = ("asm", "emu", "trampoline")
_MISSING: Any = object()
_TEXT_CACHES = (
    ("asm.assembler", "_parsed"), ("asm.assembler", "_lines"), ("asm.assembler", "_images"), ("asm.encoder", "_cache"),
)  # fmt: skip
"""What the assembler remembers of texts; a patch of the assembler itself must not meet it."""


class MutantError(TrampolineError):
    """A mutant that can't be: a name that there is not, a patch that does not fit, a module that is none."""


def applied(patch: Patch) -> AbstractContextManager[Any]:
    """The patch as a context manager. What is remembered of code is forgotten when it is put in and taken out."""
    return _applied(patch)


@contextmanager
def _applied(patch: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        stack.callback(forget)
        if hasattr(patch, "__enter__"):
            stack.enter_context(cast(AbstractContextManager[Any], patch))
        elif callable(patch):
            made = contextmanager(patch)() if inspect.isgeneratorfunction(patch) else patch()
            if hasattr(made, "__enter__"):
                stack.enter_context(made)
            elif made is not None:
                raise MutantError(f"{patch!r} gave {made!r}, which is no patch")
        else:
            raise MutantError(f"{patch!r} is no patch")
        forget()
        yield


def forget() -> None:
    """Empty everything that functions of this project remember (``functools.cache``)."""
    for _, module in _modules():
        for value in list(vars(module).values()):
            _clear(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for member in list(vars(value).values()):
                    _clear(member)


def _clear(value: object) -> None:
    clear = getattr(inspect.unwrap(value) if isinstance(value, staticmethod) else value, "cache_clear", None)
    if clear is not None and not isinstance(value, type):
        clear()


class Replacement:
    """Something else in the place of what a dotted path names: see ``replace`` and ``wrap``."""

    def __init__(self, path: str, make: Callable[[Any], Any]) -> None:
        self.path, self._make = path, make
        self._undo: list[ExitStack] = []

    def __enter__(self) -> "Replacement":
        owner, name = _owner(self.path)
        with ExitStack() as stack:
            if self.path.split(".")[0] == "asm":
                _forget_texts()
                stack.callback(_forget_texts)
            if isinstance(owner, ModuleType):
                self._everywhere(stack, owner, name)
            elif isinstance(owner, type):
                _in_class(stack, owner, name, self._make)
            else:
                old = getattr(owner, name)
                object.__setattr__(owner, name, self._make(old))
                stack.callback(object.__setattr__, owner, name, old)
            self._undo.append(stack.pop_all())
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.pop().close()

    def _everywhere(self, stack: ExitStack, owner: ModuleType, name: str) -> None:
        """In its module, and in all others that have imported it by name."""
        old = getattr(owner, name)
        new = self._make(old)
        own = _places(new, name)

        def put_back() -> None:
            # Whoever imported it meanwhile has the new one; whoever had it before keeps it.
            for module, where in _places(new, name):
                if (module, where) not in own:
                    setattr(module, where, old)
            setattr(owner, name, old)

        stack.callback(put_back)
        for module, where in _places(old, name):
            setattr(module, where, new)
        setattr(owner, name, new)


def replace(path: str, new: object) -> Replacement:
    """``new`` in the place of what ``path`` names: a function, class or constant of a module, a method or attribute of
    a class, an attribute of an object.

    What a module has is replaced in all modules that imported it, too. Static and class methods and properties stay
    what they are: ``new`` is the plain function. MutantError, when it is put in, for a path that leads nowhere.
    """
    return Replacement(path, lambda old: new)


def wrap(path: str, make: Callable[[Any], Any]) -> Replacement:
    """The same with what ``make`` gives for what was there: ``wrap("emu.kernel.rcu.Rcu.call", lambda old: ...)``."""
    return Replacement(path, make)


class ItemReplacement:
    """Another value in a mapping: see ``replace_item``."""

    def __init__(self, path: str, key: Hashable, new: object) -> None:
        self.path, self._key, self._new = path, key, new
        self._old: list[object] = []

    def __enter__(self) -> "ItemReplacement":
        mapping = self._mapping()
        self._old.append(mapping[self._key])
        mapping[self._key] = self._new
        return self

    def __exit__(self, *exc: object) -> None:
        self._mapping()[self._key] = self._old.pop()

    def _mapping(self) -> MutableMapping[Any, Any]:
        owner, name = _owner(self.path)
        found = getattr(owner, name)
        if not isinstance(found, MutableMapping) or self._key not in found:
            raise MutantError(f"{self.path} has no {self._key!r}")
        return found


def replace_item(path: str, key: Hashable, new: object) -> ItemReplacement:
    """``new`` under a key of the mapping that ``path`` names: a design, a flavour. MutantError, when it is put in."""
    return ItemReplacement(path, key, new)


def _owner(path: str) -> tuple[Any, str]:
    """What has the last name of a path, and that name."""
    parts = path.split(".")
    owner: Any = None
    for count in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:count])
        try:
            owner = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise
            continue
        break
    else:
        raise MutantError(f"there is no {path}: no module of that name")
    for at in range(count, len(parts)):
        found = getattr(owner, parts[at], _MISSING)
        if found is _MISSING:
            raise MutantError(f"there is no {path}: {'.'.join(parts[:at])} has no {parts[at]}")
        if at < len(parts) - 1:
            owner = found
    return owner, parts[-1]


def _in_class(stack: ExitStack, owner: type, name: str, make: Callable[[Any], Any]) -> None:
    raw = vars(owner).get(name, _MISSING)
    found: Any = getattr(owner, name) if raw is _MISSING else raw
    new: Any
    if isinstance(found, property):
        made = make(found.fget)
        new = made if isinstance(made, property) else property(made)
    elif isinstance(found, cached_property):
        made = make(found.func)
        new = made if isinstance(made, cached_property) else cached_property(made)
        if made is not new:
            new.__set_name__(owner, name)
    elif isinstance(found, staticmethod | classmethod):
        made = make(found.__func__)
        new = made if isinstance(made, staticmethod | classmethod) else type(found)(made)
    else:
        new = make(found)
    if raw is _MISSING:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, raw)
    setattr(owner, name, new)


def _places(value: object, name: str) -> list[tuple[ModuleType, str]]:
    """Where modules of this project have an object: a function or class by any name, anything else by its own."""
    by_identity = callable(value)
    return [
        (module, where)
        for _, module in _modules()
        for where, held in list(vars(module).items())
        if held is value and (by_identity or where == name)
    ]


def _modules() -> list[tuple[str, ModuleType]]:
    return [
        (name, module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType)
    ]


def _forget_texts() -> None:
    for module, name in _TEXT_CACHES:
        getattr(importlib.import_module(module), name).clear()
