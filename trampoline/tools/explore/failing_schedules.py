"""Failing schedules, kept in Hypothesis's example database, so that the next campaign tries them first."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from emu.schedule.action import BadSchedule
from trampoline.tools.explore.chunk import Work
from trampoline.tools.explore.schedule_id import ScheduleAddress

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase


class Examples:
    """The failing schedules of a database, by scenario, design, flavour and configuration."""

    def __init__(self, database: "ExampleDatabase") -> None:
        self._database = database

    def known(self, work: Work) -> list[ScheduleAddress]:
        """The known schedules of a campaign, shortest first."""
        found = set(self._read(_key(work.scenario, work.design, work.flavour, work.config)))
        return sorted(found, key=lambda address: (len(address.schedule), str(address)))

    def _read(self, key: bytes) -> Iterator[ScheduleAddress]:
        for value in list(self._database.fetch(key)):
            try:
                yield ScheduleAddress.parse(value.decode())
            except (BadSchedule, UnicodeDecodeError):
                # Written by another version: not a schedule of this one.
                self._database.delete(key, value)

    def save(self, address: ScheduleAddress) -> None:
        """Add a schedule."""
        self._database.save(_key_of(address), str(address).encode())

    def forget(self, address: ScheduleAddress) -> None:
        """Remove a schedule that has no violation any more."""
        self._database.delete(_key_of(address), str(address).encode())


def _key_of(address: ScheduleAddress) -> bytes:
    return _key(address.scenario, address.design, address.flavour, address.config)


def _key(*parts: str) -> bytes:
    return ("tramplab schedules of " + "/".join(parts)).encode()
