import pytest

from emu.process import Deadlock, Lock, PointKind, ProcessContext


@pytest.fixture
def process():
    return ProcessContext()


def test_without_a_driver_an_operation_runs_straight_through(process):
    seen = []
    process.watchers.append(lambda point: seen.append(point.what))
    process.point(PointKind.ALLOC, "one")
    process.point(PointKind.IPI, "two")
    assert seen == ["one", "two"]


def test_operations_interleave_at_points(process):
    log = []

    def operation(name):
        def run():
            for number in range(3):
                log.append(f"{name}{number}")
                process.point(PointKind.LOCK, f"{name}{number}")
            return name

        return run

    a, b = process.start(operation("a")), process.start(operation("b"))
    for task in (a, b, b, a, a, b):
        task.step()
    assert log == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert (a.finish(), b.finish()) == ("a", "b")
    assert a.step() is None


def test_a_lock_keeps_others_out_until_it_is_given_back(process):
    lock = Lock(process, "mutex")
    order = []

    def operation(name):
        def run():
            with lock:
                order.append(name)
                process.point(PointKind.IPI, "inside")
                order.append(name)

        return run

    a, b = process.start(operation("a")), process.start(operation("b"))
    for _ in range(2):
        a.step()
    for _ in range(5):
        b.step()
    assert order == ["a"]
    a.finish()
    b.finish()
    assert order == ["a", "a", "b", "b"]
    assert not lock.held


def test_a_lock_that_nobody_can_give_back_is_a_deadlock(process):
    lock = Lock(process, "mutex")
    lock.acquire()
    with pytest.raises(Deadlock, match="mutex"):
        lock.acquire()


def test_an_exception_ends_the_operation_where_it_is_stepped(process):
    def fails():
        process.point(PointKind.ALLOC, "before")
        raise ValueError("no")

    task = process.start(fails)
    task.step()
    with pytest.raises(ValueError, match="no"):
        task.step()
    assert task.done


def test_the_nth_point_of_a_kind_fails(process):
    def run():
        for number in range(3):
            process.point(PointKind.ALLOC, str(number))

    with process.fail_at(PointKind.ALLOC, 2, lambda what: MemoryError(what)), pytest.raises(MemoryError, match="1"):
        run()
    run()


def test_only_allocations_and_patches_can_fail(process):
    with pytest.raises(ValueError, match="can't fail"), process.fail_at(PointKind.IPI, 1, MemoryError):
        pass


def test_a_failing_operation_gives_its_lock_back(process):
    lock = Lock(process, "mutex")

    def run():
        with lock:
            process.point(PointKind.ALLOC, "inside")

    with process.fail_at(PointKind.ALLOC, 1, MemoryError), pytest.raises(MemoryError):
        run()
    assert not lock.held
