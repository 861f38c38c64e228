"""Unbalanced returns: what the return stack models, and what it doesn't."""

import pytest


def unbalanced(it, method, **options):
    counter = it.counter(method, **options)
    assert it.run(counter).rip == it.end
    return counter.unbalanced_returns


def test_nested_calls_balance(engine, method):
    it = engine("call a; call b; jmp out; a: call b; call c; ret; b: call c; ret; c: ret; out: nop")
    assert unbalanced(it, method) == 0


def test_recursion_balances(engine, method):
    it = engine("mov ecx, 300; call f; jmp out; f: dec ecx; jz z; call f; z: ret; out: nop")
    assert unbalanced(it, method) == 0


def test_ret_with_operand_and_indirect_calls_balance(engine, method):
    it = engine("lea rax, [rip + f]; push 1; call rax; mov [rdi], rax; call [rdi]; jmp out; f: ret 0; out: nop")
    assert unbalanced(it, method) == 0


@pytest.mark.parametrize("times", [1, 3])
def test_ret_without_a_call(engine, method, times):
    it = engine(f"mov ecx, {times}; x: lea rax, [rip + y]; push rax; ret; y: loop x; nop")
    assert unbalanced(it, method) == times


def test_return_address_dropped_unbalances_every_return_around_it(engine, method):
    # g drops its own return address and returns for f: its ret pops the entry of `call g`, and so on outwards.
    it = engine("call e; jmp out; e: call f; ret; f: call g; g: add rsp, 8; ret; out: nop")
    assert unbalanced(it, method) == 2


def test_calls_after_a_mismatch_balance_again(engine, method):
    it = engine(
        "lea rax, [rip + a]; push rax; ret; a: call f; call f; jmp out; f: call g; ret; g: ret; out: nop"
    )
    assert unbalanced(it, method) == 1


def test_return_into_the_caller_of_the_caller(engine, method):
    it = engine("call f; jmp out; f: call g; ud2; g: pop rax; ret; out: nop")
    assert unbalanced(it, method) == 1


def test_return_address_that_was_changed(engine, method):
    it = engine("call f; ud2; jmp out; f: add qword ptr [rsp], 2; ret; out: nop")
    assert unbalanced(it, method) == 1


@pytest.mark.parametrize(("depth", "expected"), [(1, 8), (3, 6), (4, 5), (8, 1), (9, 0), (1024, 0)])
def test_depth_wraps(engine, method, depth, expected):
    # Nine calls deep: the oldest entries are overwritten, their returns find nothing.
    it = engine("mov ecx, 9; call f; jmp out; f: dec ecx; jz z; call f; z: ret; out: nop")
    assert unbalanced(it, method, return_stack_depth=depth) == expected


def test_call_emulated_by_an_int3_is_none(engine, method):
    # The int3 stands where a call to f would: f's ret takes the entry of the call around it.
    it = engine("call e; jmp out; e: nop; int3; nop; nop; nop; nop; ret; f: ret; out: nop")
    e = it.text + 7
    it.redirect = {e + 2: (e + 7, e + 6)}
    it.write(e + 6, "ret; ret")
    assert unbalanced(it, method) == 2


def test_return_that_ends_the_run(engine, method):
    it = engine("call f; x: nop; f: ret")
    counter = it.counter(method)
    it.run(counter, until=it.text + 5)
    assert counter.unbalanced_returns == 0
    it.push(it.text + 5)
    assert it.run(counter, start=it.text + 6, until=it.text + 5).rip == it.text + 5
    assert counter.unbalanced_returns == 1


def test_call_and_return_in_separate_runs(engine, method):
    it = engine("call f; x: nop; f: nop; ret")
    counter = it.counter(method)
    it.run(counter, until=it.text + 6)
    it.run(counter, start=it.text + 6, until=it.text + 7)
    it.run(counter, start=it.text + 7, until=it.text + 5)
    assert counter.instructions == 3
    assert counter.unbalanced_returns == 0


def test_call_whose_push_faults_is_none(engine, method):
    it = engine("call f; nop; f: ret")
    it.registers(rsp=it.data)
    counter = it.counter(method)
    assert it.run(counter).faulted
    it.registers(rsp=it.stack)
    it.push(it.text + 5)
    it.run(counter, start=it.text + 6, until=it.text + 5)
    assert counter.unbalanced_returns == 1


def test_return_that_faults_pops_nothing(engine, method):
    it = engine("call f; jmp out; f: ret; out: nop")
    counter = it.counter(method)
    it.run(counter, until=it.text + 7)
    it.registers(rsp=it.data_end)
    assert it.run(counter, start=it.text + 7).faulted
    it.registers(rsp=it.stack - 8)
    it.run(counter, start=it.text + 7)
    assert counter.unbalanced_returns == 0
    assert counter.instructions == 4


@pytest.mark.parametrize("pushed", [True, False])
def test_call_made_by_the_host(engine, method, pushed):
    it = engine("ret; nop")
    it.push(it.text + 1)
    counter = it.counter(method)
    if pushed:
        counter.push_return(it.text + 1)
    assert it.run(counter, until=it.text + 1).rip == it.text + 1
    assert counter.unbalanced_returns == (not pushed)


def test_return_to_nowhere(engine, method):
    it = engine("ret")
    counter = it.counter(method)
    it.push(0)
    assert it.run(counter).rip == 0
    assert counter.unbalanced_returns == 1


def test_run_that_starts_elsewhere(engine, method):
    # The call's block is left by the host; what runs next is not where it went.
    it = engine("call f; ret; f: nop; ret")
    counter = it.counter(method)
    it.run(counter, until=it.text + 6)
    it.registers(rsp=it.stack - 8)
    it.run(counter, start=it.text + 7, until=it.text + 5)
    assert counter.unbalanced_returns == 0


def test_reset_empties_the_return_stack(engine, method):
    it = engine("call f; nop; f: ret; lea rax, [rip + y]; push rax; ret; y: nop")
    counter = it.counter(method)
    it.run(counter, until=it.text + 6)
    counter.reset()
    it.run(counter, start=it.text + 6, until=it.text + 5)
    assert counter.unbalanced_returns == 1
    counter.reset()
    assert counter.unbalanced_returns == 0


def test_limits_do_not_change_the_balance(engine, method):
    it = engine("call a; call b; jmp out; a: call b; ret; b: call c; nop; c: add rsp, 8; ret; out: nop")
    whole = it.counter(method)
    it.run(whole)
    whole.remove()
    stepped = it.counter(method)
    rip = it.text
    while rip != it.end:
        rip = it.run(stepped, start=rip, count=1).rip
    assert stepped.counts() == whole.counts()
    assert stepped.unbalanced_returns == whole.unbalanced_returns > 0
