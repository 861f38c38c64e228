"""Checkpoint of a kernel's Python objects, which can be restored in place.

Process context's state (allocators, symbols, ftrace's records, trampolines, locks, ...) is in Python objects. The
checkpoint records the content of every mutable object reachable from some roots; ``restore`` puts it back. Nothing is
copied: objects made since are dropped, the recorded ones keep their identity. Running greenlets are not included:
operations under way must have ended. Guest memory, engines and tasks belong to ``Machine.restore``. A class whose
objects only cache values declares ``IS_CACHE = True``: they are not recorded.
"""

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from operator import attrgetter, is_
from typing import Any

_PACKAGES = ("asm", "emu", "trampoline")
_ATOMS = frozenset({int, str, bytes, float, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType})
"""Types of immutable leaves, including their subclasses, such as members of enumerations."""


class Checkpoint:
    """Current content of the objects reachable from ``roots``, but not through ``outside``.

    ``packages``: objects of classes of these packages are followed; all others are taken for immutable.
    """

    def __init__(self, roots: Iterable[object], outside: Iterable[object], packages: Iterable[str] = _PACKAGES) -> None:
        self._packages = tuple(packages)
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._deques: list[tuple[deque[Any], list[Any]]] = []
        self._slots: list[tuple[object, tuple[str, ...], Callable[[object], Sequence[Any]], tuple[Any, ...]]] = []
        self._keep: list[object] = list(outside)
        self._seen = {id(thing) for thing in self._keep}
        self._find(list(roots), self._seen)

    def extend(self, roots: Iterable[object]) -> None:
        """Record objects newly reachable from more roots, with their current content. Valid only for objects that have
        not changed since the checkpoint, or did not exist then.
        """
        self._find(list(roots), self._seen)

    def restore(self) -> None:
        """Restore the recorded content of every object."""
        for mapping, content in self._dicts:
            mapping.clear()
            mapping.update(content)
        for sequence, elements in self._lists:
            sequence[:] = elements
        for group, members in self._sets:
            group.clear()
            group.update(members)
        for queue, items in self._deques:
            queue.clear()
            queue.extend(items)
        for thing, names, read, values in self._slots:
            if not all(map(is_, read(thing), values)):
                for name, value in zip(names, values, strict=True):
                    setattr(thing, name, value)

    def __len__(self) -> int:
        return len(self._dicts) + len(self._lists) + len(self._sets) + len(self._deques) + len(self._slots)

    def _find(self, todo: list[object], seen: set[int]) -> None:
        while todo:
            thing = todo.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            self._keep.append(thing)
            todo += [found for found in self._note(thing) if type(found) not in _ATOMS]

    def _note(self, thing: object) -> Iterable[object]:
        """Record a mutable object; returns the objects that it refers to."""
        kind = type(thing)
        if kind in (dict, Counter, defaultdict, OrderedDict):
            assert isinstance(thing, dict)
            self._dicts.append((thing, dict(thing)))
            return [*thing.keys(), *thing.values()]
        if kind is list:
            assert isinstance(thing, list)
            self._lists.append((thing, list(thing)))
            return thing
        if kind is set:
            assert isinstance(thing, set)
            self._sets.append((thing, set(thing)))
            return thing
        if kind is deque:
            assert isinstance(thing, deque)
            self._deques.append((thing, list(thing)))
            return thing
        if isinstance(thing, tuple | frozenset):
            return thing
        if isinstance(thing, types.FunctionType):
            return [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        if isinstance(thing, types.MethodType):
            return [thing.__self__]
        if isinstance(thing, partial):
            return [thing.func, *thing.args, *thing.keywords.values()]
        if isinstance(thing, int | str | type) or kind.__module__.split(".")[0] not in self._packages:
            return ()
        return self._note_fields(thing, kind)

    def _note_fields(self, thing: object, kind: type) -> Iterable[object]:
        is_cache, frozen, slots = _fields_of(kind)
        if is_cache:
            return ()
        leads: list[object] = []
        attributes = getattr(thing, "__dict__", None)
        if attributes is not None:
            if frozen:
                leads += attributes.values()
            else:
                leads.append(attributes)
        names = [name for name in slots if hasattr(thing, name)]
        values = tuple(getattr(thing, name) for name in names)
        leads += values
        if values and not frozen:
            self._slots.append((thing, tuple(names), _reader(names), values))
        return leads


@cache
def _fields_of(kind: type) -> tuple[bool, bool, tuple[str, ...]]:
    """Properties of a class: whether its objects are caches, whether they are immutable, and its slots."""
    parameters = getattr(kind, "__dataclass_params__", None)
    slots = tuple(name for base in kind.__mro__ for name in _slots_of(base) if name not in ("__dict__", "__weakref__"))
    return getattr(kind, "IS_CACHE", False), parameters is not None and bool(parameters.frozen), slots


def _slots_of(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _reader(names: Sequence[str]) -> Callable[[object], Sequence[Any]]:
    """Function that reads these attributes at once."""
    if len(names) == 1:
        (name,) = names
        return lambda thing: (getattr(thing, name),)
    return attrgetter(*names)


def _is_filled(cell: "types.CellType") -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
