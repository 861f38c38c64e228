from collections.abc import Callable, Iterator

import pytest

from trampoline.lab import Lab


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    labs: list[Lab] = []

    def make(*args, **options) -> Lab:
        labs.append(Lab(*args, **options))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(make_lab) -> Lab:
    return make_lab("6.12")
