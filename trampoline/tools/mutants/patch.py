"""Patches: a mutant's changes of the code, applied when a block begins and reverted when it ends.

A patch is a context manager (a ``replace`` of this module, ``unittest.mock.patch``), or a function without parameters
that returns one, is a generator with one ``yield``, or applies the change directly.
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
"""A patch in any of the forms above."""

_PACKAGES = ("asm", "emu", "trampoline")
_MISSING: Any = object()
_TEXT_CACHES = (
    ("asm.assembler", "_parsed"), ("asm.assembler", "_lines"), ("asm.assembler", "_images"), ("asm.encoder", "_cache"),
)  # fmt: skip
"""Caches of assembled texts, which patches of the assembler itself must not hit."""


class MutantError(TrampolineError):
    """Invalid mutant: an unknown name, a patch that does not fit, a file that defines none."""


def applied(patch: Patch) -> AbstractContextManager[Any]:
    """The patch as a context manager. Caches of code are cleared when it is applied and when it is reverted."""
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
                raise MutantError(f"{patch!r} returned {made!r}, which is not a patch")
        else:
            raise MutantError(f"{patch!r} is not a patch")
        forget()
        yield


def forget() -> None:
    """Clear the ``functools.cache`` of every function of this project."""
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
    """Replacement of the object at a dotted path: see ``replace`` and ``wrap``."""

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
        """Replace the object in its module, and in all modules that have imported it by name."""
        old = getattr(owner, name)
        new = self._make(old)
        own = _places(new, name)

        def put_back() -> None:
            # Modules that imported it meanwhile have the new one; those that had the old one before keep it.
            for module, where in _places(new, name):
                if (module, where) not in own:
                    setattr(module, where, old)
            setattr(owner, name, old)

        stack.callback(put_back)
        for module, where in _places(old, name):
            setattr(module, where, new)
        setattr(owner, name, new)


def replace(path: str, new: object) -> Replacement:
    """Replace the object at ``path`` with ``new``: a function, class or constant of a module, a method or attribute of
    a class, an attribute of an object.

    A module's object is replaced in all modules that imported it, too. Static methods, class methods and properties
    keep their kind: ``new`` is the plain function. Applying it raises MutantError if the path does not exist.
    """
    return Replacement(path, lambda old: new)


def wrap(path: str, make: Callable[[Any], Any]) -> Replacement:
    """As ``replace``, with ``make(old)`` as the new object: ``wrap("emu.kernel.rcu.Rcu.call", lambda old: ...)``."""
    return Replacement(path, make)


class ItemReplacement:
    """Replacement of a value in a mapping: see ``replace_item``."""

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
    """Replace the value under ``key`` in the mapping at ``path``: a design, a flavour. Applying it raises MutantError
    if the path or key does not exist.
    """
    return ItemReplacement(path, key, new)


def _owner(path: str) -> tuple[Any, str]:
    """The object that contains the last name of a path, and that name."""
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
        raise MutantError(f"{path}: no such module")
    for at in range(count, len(parts)):
        found = getattr(owner, parts[at], _MISSING)
        if found is _MISSING:
            raise MutantError(f"{path}: {'.'.join(parts[:at])} has no {parts[at]}")
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
    """Modules of this project that contain an object: a function or class by any name, other objects by their own."""
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
