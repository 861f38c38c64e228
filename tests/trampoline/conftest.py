from collections.abc import Callable, Iterator

import pytest

from trampoline.lab import Tracing


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Tracing]]:
    labs: list[Tracing] = []

    def make(*args, **options) -> Tracing:
        labs.append(Tracing(*args, **options))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(make_lab) -> Tracing:
    return make_lab("6.12")
