import pytest

from emu.kernel.process_context import Deadlock, Lock, PointKind, ProcessContext


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


def steps_of(process, **options):
    return list(process.stretches(PointKind.PATCH, 3, lambda number: f"step {number}", **options))


def test_steps_that_nothing_can_come_between_are_one_stretch(process):
    def text(number):
        raise AssertionError("nobody reads it")

    assert list(process.stretches(PointKind.IPI, 3, text)) == [slice(3)]
    # Only points of the kind that fails matter.
    with process.fail_at(PointKind.PATCH, 1, MemoryError):
        assert list(process.stretches(PointKind.IPI, 3, text)) == [slice(3)]


SINGLY = [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_steps_at_whose_points_something_happens_are_taken_singly(process):
    seen = []
    assert steps_of(process, singly=True) == SINGLY
    process.watchers.append(lambda point: seen.append((point.kind, point.what)))
    assert steps_of(process) == SINGLY
    assert seen == [(PointKind.PATCH, f"step {number}") for number in range(3)]
    process.watchers.clear()

    task = process.start(lambda: steps_of(process))
    stops = [task.step().what for _ in range(3)]
    assert (stops, task.finish()) == ([f"step {number}" for number in range(3)], SINGLY)


def test_the_nth_step_fails_after_those_before_it(process):
    done = []
    with process.fail_at(PointKind.PATCH, 3, MemoryError), pytest.raises(MemoryError, match="step 2"):
        done.extend(process.stretches(PointKind.PATCH, 3, lambda number: f"step {number}"))
    assert done == SINGLY[:2]
