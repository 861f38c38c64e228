"""Every rule of what counts as executed, one by one, for each method."""

import gc
import threading
import weakref

import pytest
from unicorn import x86_const
from unicorn.unicorn_const import UC_HOOK_BLOCK, UC_HOOK_CODE, UC_HOOK_INTR, UC_HOOK_MEM_WRITE

from emu.counting import CountingError

STRAIGHT = "nop; xor eax, eax; inc eax; mov ecx, eax"  # at 0, 1, 3, 5; ends at 7


def test_straight_code(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 5: 1}
    assert counter.instructions == 4
    assert counter.method == method


def test_nothing_executed(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter, start=it.end, until=it.end)
    assert counter.counts() == {}
    assert counter.instructions == 0


def test_loop(engine, method):
    it = engine("mov ecx, 5; x: dec ecx; jnz x; nop")
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 5, 7: 5, 9: 1}


def test_counts_add_up_until_reset(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter)
    it.run(counter)
    assert it.offsets(counter) == {0: 2, 1: 2, 3: 2, 5: 2}
    counter.reset()
    assert counter.counts() == {}
    assert counter.instructions == 0
    it.run(counter, start=it.text + 3)
    assert it.offsets(counter) == {3: 1, 5: 1}


# Faults, traps


@pytest.mark.parametrize(
    "fault",
    ["mov rax, [0]", "ud2", ".byte 0x06", "push qword ptr [0]", "mov byte ptr [rip], 1", "xor eax, eax; div eax"],
)
@pytest.mark.parametrize("before", [0, 2])
def test_what_faults_is_not_counted(engine, method, fault, before):
    it = engine("nop;" * before + fault + "; nop; nop")
    counter = it.counter(method)
    way_out = it.run(counter)
    assert way_out.faulted
    assert way_out.rip not in counter.counts()
    assert way_out.rip == it.text + before + 2 * ("div" in fault)
    assert counter.instructions == before + ("div" in fault)


def test_fault_in_a_later_turn_of_a_loop(engine, method):
    it = engine("x: mov byte ptr [rdi], 1; add rdi, 0x1000; jmp x")
    it.registers(rdi=it.data_end - 0x3000)
    counter = it.counter(method)
    assert it.run(counter).rip == it.text
    assert it.offsets(counter) == {0: 3, 3: 3, 10: 3}


def test_fault_of_a_fetch_leaves_the_jump_counted(engine, method):
    it = engine("nop; mov rax, 0xffff900000000000; jmp rax")
    counter = it.counter(method)
    assert it.run(counter).rip == 0xFFFF900000000000
    assert it.offsets(counter) == {0: 1, 1: 1, 11: 1}


def test_fetch_from_data_is_refused_and_not_counted(engine, method):
    it = engine("nop; call rdi")
    counter = it.counter(method)
    assert it.run(counter).rip == it.data
    assert it.offsets(counter) == {0: 1, 1: 1}


def test_repaired_fault_is_executed_once(engine, method):
    it = engine("nop; mov al, [rdi]; nop")
    it.registers(rdi=it.data_end)
    counter = it.counter(method)
    way_out = it.run(counter)
    assert way_out.faulted
    it.registers(rdi=it.data)
    it.run(counter, start=way_out.rip)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1}


def test_fault_repaired_within_the_hook(engine, method):
    it = engine("nop; mov al, [rdi]; nop; nop")
    it.registers(rdi=it.data_end)
    counter = it.counter(method)

    def repair():
        counter.end(it.rip, True)
        it.registers(rdi=it.data)
        counter.begin()

    it.on_fault = repair
    it.run(counter)
    assert it.fault == 14
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 4: 1}


def test_int3_is_counted(engine, method):
    it = engine("nop; int3; nop")
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 1: 1, 2: 1}


def test_hlt_is_counted(engine, method):
    it = engine("nop; hlt; nop")
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 1: 1}


def test_pause_and_system_instructions(engine, method):
    it = engine("pause; cli; sti; nop; mov rax, cr3; mov cr3, rax; pushfq; popfq; cpuid; lfence; nop")
    counter = it.counter(method)
    it.run(counter)
    assert counter.instructions == 11
    assert set(counter.counts().values()) == {1}


# rep


@pytest.mark.parametrize("times", [0, 1, 2, 7])
@pytest.mark.parametrize("rep", ["rep stosb", "rep movsq", "rep lodsd", "repe cmpsb", "repne scasb", "rep stosw"])
@pytest.mark.parametrize(("before", "after"), [("", "; nop; nop"), ("nop; nop;", "; nop"), ("nop;", ""), ("", "")])
def test_rep_counts_once(engine, method, times, rep, before, after):
    it = engine(before + rep + after)
    it.registers(rcx=times, rsi=it.data + 0x100, rdi=it.data + 0x100, rax=1)
    counter = it.counter(method)
    it.run(counter)
    assert set(counter.counts().values()) == {1}
    assert counter.instructions == (before + after).count("nop") + 1


def test_rep_in_a_loop(engine, method):
    it = engine("mov edx, 3; x: mov ecx, edx; rep stosb; dec edx; jnz x")
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 3, 7: 3, 9: 3, 11: 3}


def test_jump_back_to_the_rep_itself_counts_it_again(engine, method):
    it = engine("mov edx, 3; x: rep stosb; mov cl, 2; dec edx; jnz x")
    it.registers(rcx=2)
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 3, 7: 3, 9: 3, 11: 3}


def test_rep_that_faults_is_not_counted_and_once_when_repeated(engine, method):
    it = engine("nop; rep stosb; nop")
    it.registers(rdi=it.data_end - 3, rcx=5)
    counter = it.counter(method)
    way_out = it.run(counter)
    assert (way_out.faulted, way_out.rip) == (True, it.text + 1)
    assert it.offsets(counter) == {0: 1}
    it.registers(rdi=it.data)
    it.run(counter, start=way_out.rip)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1}


def test_rep_interrupted_by_limits_counts_when_it_is_over(engine, method):
    it = engine("nop; rep stosb; nop")
    it.registers(rcx=4)
    counter = it.counter(method)
    rip, seen = it.text, []
    while rip != it.end:
        rip = it.run(counter, start=rip, count=1).rip
        seen.append((rip - it.text, it.offsets(counter).get(1, 0)))
    assert [count for at, count in seen if at == 1] == [0] * (len(seen) - 2)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1}


def test_rep_prefix_on_other_instructions(engine, method):
    it = engine("call x; nop; jmp out; x: .byte 0xf3, 0xc3; out: nop")
    counter = it.counter(method)
    it.run(counter)
    assert counter.instructions == 5
    assert counter.unbalanced_returns == 0


# Blocks


@pytest.mark.parametrize("length", [362, 363, 364, 800])
def test_long_blocks_split(engine, method, length):
    it = engine("nop;" * length)
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == dict.fromkeys(range(length), 1)


def test_fault_in_the_second_part_of_a_long_block(engine, method):
    it = engine("nop;" * 500 + "ud2;" + "nop;" * 300)
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == dict.fromkeys(range(500), 1)


@pytest.mark.parametrize("offset", [0xFFC, 0xFFD, 0xFFE, 0xFFF, 0x1000])
def test_page_crossing_blocks(engine, method, offset):
    it = engine()
    start = it.text + offset
    size = it.write(start, "inc eax; add eax, 0x12345678; inc eax; nop")
    counter = it.counter(method)
    for _ in range(2):
        it.run(counter, start=start, until=start + size)
    assert it.offsets(counter) == {offset + at: 2 for at in (0, 2, 7, 9)}
    it.patch(start + size - 1, "cld", counter)  # on the second page
    it.run(counter, start=start, until=start + size)
    assert it.offsets(counter) == {offset + at: 3 for at in (0, 2, 7, 9)}


def test_blocks_of_one_instruction(engine, method):
    it = engine("jmp a; a: jmp b; b: jmp c; c: ret")
    it.push(it.end)
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 2: 1, 4: 1, 6: 1}


@pytest.mark.parametrize("source", ["x: loop x", "x: dec rcx; jnz x", "x: nop; loop x"])
def test_block_that_jumps_to_itself(engine, method, source):
    it = engine(source)
    it.registers(rcx=10)
    counter = it.counter(method)
    it.run(counter)
    assert set(counter.counts().values()) == {10}


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("source", ["x: jmp x", "x: nop; jmp x", "x: nop; nop; jmp x", "nop; x: jmp x"])
def test_limit_in_a_block_that_jumps_to_itself(engine, method, source, limit):
    it = engine(source)
    counter = it.counter(method, engine_limits=True)
    it.run(counter, count=limit)
    assert counter.instructions == limit


@pytest.mark.parametrize("source", ["x: jmp x", "x: nop; jmp x", "nop; x: jmp x"])
def test_code_hook_stops_a_block_that_jumps_to_itself(engine, method, source):
    it = engine(source)
    counter = it.counter(method)
    left = [5]

    def limit(uc, *_):
        left[0] -= 1
        if left[0] < 0:
            uc.emu_stop()

    it.uc.hook_add(UC_HOOK_CODE, limit)
    it.uc.ctl_flush_tb()
    way_out = it.run(counter)
    assert counter.instructions == 5
    left[0] = 3
    it.run(counter, start=way_out.rip)
    assert counter.instructions == 8


def test_jump_into_an_instruction(engine, method):
    # At 5: mov eax, 0x90909090; at 6, its second byte: four nops.
    it = engine("mov ecx, 1; x: .byte 0xb8; y: .byte 0x90, 0x90, 0x90, 0x90; dec ecx; js out; jmp y; out: nop")
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 2, 12: 2, 14: 1, 16: 1}


@pytest.mark.parametrize("until", [0, 1, 3, 5, 7])
def test_until_in_the_middle_of_a_block(engine, method, until):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter)
    it.run(counter, until=it.text + until)
    it.run(counter, start=it.text + until)
    it.run(counter)
    assert it.offsets(counter) == {0: 3, 1: 3, 3: 3, 5: 3}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_limits(engine, method, limit):
    it = engine("mov ecx, 5; x: dec ecx; jnz x; nop")
    counter = it.counter(method)
    way_out, executed = it.run(counter, count=limit), limit
    while way_out.rip != it.end:
        assert counter.instructions == executed
        way_out = it.run(counter, start=way_out.rip, count=limit)
        executed = min(executed + limit, 12)
    assert it.offsets(counter) == {0: 1, 5: 5, 7: 5, 9: 1}


# Hooks that stop, move RIP, or run something


@pytest.mark.parametrize("at", [0, 1, 3, 5])
@pytest.mark.parametrize("first", [True, False])
def test_stop_by_a_code_hook_and_resume(engine, method, at, first):
    it = engine(STRAIGHT)
    counter = None if first else it.counter(method)
    hook = it.uc.hook_add(UC_HOOK_CODE, lambda uc, *_: uc.emu_stop(), begin=it.text + at, end=it.text + at)
    it.uc.ctl_flush_tb()
    counter = counter or it.counter(method)
    assert it.run(counter).rip == it.text + at
    assert counter.instructions == [0, 1, 3, 5].index(at)
    it.uc.hook_del(hook)
    it.uc.ctl_flush_tb()
    it.run(counter, start=it.text + at)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 5: 1}


def test_stop_on_a_ret_by_a_code_hook(engine, method):
    it = engine("call x; jmp out; x: ret; out: nop")
    counter = it.counter(method)
    hook = it.uc.hook_add(UC_HOOK_CODE, lambda uc, *_: uc.emu_stop(), begin=it.text + 7, end=it.text + 7)
    way_out = it.run(counter)
    assert way_out.rip == it.text + 7
    assert it.offsets(counter) == {0: 1}
    it.uc.hook_del(hook)
    it.uc.ctl_flush_tb()
    it.run(counter, start=way_out.rip)
    assert it.offsets(counter) == {0: 1, 7: 1, 5: 1, 8: 1}
    assert counter.unbalanced_returns == 0


def test_stop_by_a_block_hook_and_resume(engine, method):
    it = engine("nop; jmp x; x: inc eax; nop")
    counter = it.counter(method)
    hook = it.uc.hook_add(UC_HOOK_BLOCK, lambda uc, *_: uc.emu_stop(), begin=it.text + 3, end=it.text + 3)
    assert it.run(counter).rip == it.text + 3
    assert it.offsets(counter) == {0: 1, 1: 1}
    it.uc.hook_del(hook)
    it.uc.ctl_flush_tb()
    it.run(counter, start=it.text + 3)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 5: 1}


def test_stop_by_a_memory_hook_and_resume(engine, method):
    it = engine("nop; mov [rdi], al; nop; nop")
    counter = it.counter(method)
    hook = it.uc.hook_add(UC_HOOK_MEM_WRITE, lambda uc, *_: uc.emu_stop())
    way_out = it.run(counter)
    it.uc.hook_del(hook)
    it.uc.ctl_flush_tb()
    it.run(counter, start=way_out.rip)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 4: 1}


def test_stop_by_an_interrupt_hook_after_int3(engine, method):
    it = engine("nop; int3; nop; nop")
    counter = it.counter(method)
    it.uc.hook_add(UC_HOOK_INTR, lambda uc, *_: uc.emu_stop())
    way_out = it.run(counter)
    assert way_out.rip == it.text + 2
    assert it.offsets(counter) == {0: 1, 1: 1}
    it.run(counter, start=way_out.rip)
    assert it.offsets(counter) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_int3_emulates_a_jump_within_the_run(engine, method):
    it = engine("nop; int3; ud2; nop; x: inc eax")
    it.redirect = {it.text + 2: (it.text + 5, None)}
    counter = it.counter(method)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 1: 1, 5: 1}


def test_code_hook_moves_rip(engine, method):
    it = engine("nop; inc eax; inc eax; nop; nop")

    counter = it.counter(method)

    def skip(uc, address, size, _):
        counter.end(address, False)
        it.registers(rip=it.text + 5)
        counter.begin()

    it.uc.hook_add(UC_HOOK_CODE, skip, begin=it.text + 1, end=it.text + 1)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 1, 6: 1}


def test_engine_started_again_within_a_hook(engine, method):
    it = engine("nop; inc eax; inc eax; jmp out; x: dec eax; dec eax; y: nop; out: nop")
    counter = it.counter(method)

    def nested(uc, address, size, _):
        context = uc.context_save()
        it.run(counter, start=it.text + 7, until=it.text + 11)
        uc.context_restore(context)

    it.uc.hook_add(UC_HOOK_CODE, nested, begin=it.text + 3, end=it.text + 3)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 1: 1, 3: 1, 5: 1, 7: 1, 9: 1, 12: 1}


@pytest.mark.parametrize("source", ["nop; x: nop; jmp x", "x: jmp x", "call f; f: nop; jmp f"])
def test_stop_wanted_before_the_run(engine, method, source):
    it = engine(source)
    counter = it.counter(method)
    counter.request_stop()
    assert it.run(counter).rip == it.text
    assert counter.counts() == {}
    counter.request_stop()
    counter.request_stop(False)
    left = [10]

    def limit(uc, *_):
        left[0] -= 1
        if left[0] < 0:
            uc.emu_stop()

    it.uc.hook_add(UC_HOOK_CODE, limit)
    it.uc.ctl_flush_tb()
    it.run(counter)
    assert counter.instructions == 10


@pytest.mark.parametrize("source", ["x: inc r15; jmp x", "x: inc r15; call f; jmp x; f: nop; ret"])
def test_stop_wanted_by_another_thread(engine, method, source):
    it = engine(source)
    counter = it.counter(method)
    rip = it.text
    for _ in range(20):
        thread = threading.Thread(target=counter.request_stop)
        thread.start()
        rip = it.run(counter, start=rip).rip
        thread.join()
    assert counter.counts().get(it.text, 0) == it.uc.reg_read(x86_const.UC_X86_REG_R15)
    assert counter.unbalanced_returns == 0


def test_stop_wanted_of_a_removed_counter(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    counter.remove()
    counter.request_stop()
    assert it.run().rip == it.end


# Text that changes


def test_patch_of_the_same_size(engine, method):
    it = engine("nop; nop; nop; nop; nop; inc eax")
    counter = it.counter(method)
    it.run(counter)
    it.patch(it.text, bytes.fromhex("0f1f440000"), counter)
    it.run(counter)
    assert it.offsets(counter) == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2}
    assert counter.instructions == 8
    it.patch(it.text, "nop; nop; nop; nop; nop", counter)
    it.run(counter)
    assert it.offsets(counter) == {0: 3, 1: 2, 2: 2, 3: 2, 4: 2, 5: 3}


def test_patch_of_one_block_leaves_the_others(engine, method):
    it = engine("nop; jmp x; x: nop; jmp y; y: inc eax")
    counter = it.counter(method)
    it.run(counter)
    it.patch(it.text + 3, "cld", counter)
    it.run(counter)
    assert set(counter.counts().values()) == {2}


def test_patch_turns_a_call_into_a_jump(engine, method):
    it = engine("call x; jmp out; x: ret; out: nop")
    counter = it.counter(method)
    it.run(counter)
    assert (counter.instructions, counter.unbalanced_returns) == (4, 0)
    it.push(it.text + 5)
    it.patch(it.text, bytes.fromhex("e902000000"), counter)
    it.run(counter)
    assert (counter.instructions, counter.unbalanced_returns) == (8, 1)


def test_wide_invalidation_keeps_the_counts(engine, method):
    it = engine("mov ecx, 3; x: dec ecx; jnz x; nop")
    counter = it.counter(method)
    it.run(counter)
    counts = counter.counts()
    counter.invalidate(0, 1 << 64)
    assert counter.counts() == counts
    assert counter.instructions == sum(counts.values())
    it.run(counter)
    assert counter.counts() == {address: 2 * count for address, count in counts.items()}
    counter.reset()
    it.run(counter)
    assert counter.counts() == counts


def test_patch_from_a_hook_leaves_the_running_block_as_it_began(engine, method):
    it = engine("mov ecx, 2; x: nop; nop; dec ecx; jnz x")
    counter = it.counter(method)
    done = []

    def patch(uc, address, size, _):
        if not done:
            done.append(address)
            it.patch(it.text + 5, b"\x66\x90", counter)

    it.uc.hook_add(UC_HOOK_CODE, patch, begin=it.text + 7, end=it.text + 7)
    it.run(counter)
    assert it.offsets(counter) == {0: 1, 5: 2, 6: 1, 7: 2, 9: 2}


def test_code_that_read_code_does_not_give(engine, method):
    it = engine("nop; nop; nop")
    read, it.read_code = it.read_code, lambda address, size: b""
    counter = it.counter(method)
    with pytest.raises(CountingError, match="bytes of code instead of") as caught:
        it.run(counter)
    assert caught.value.address == it.text
    it.read_code = read


def test_error_of_read_code_arrives_at_the_end_of_the_run(engine, method):
    def refuse(address, size):
        raise LookupError(hex(address))

    it = engine("jmp x; x: nop; jmp x")
    it.read_code = refuse
    counter = it.counter(method)
    with pytest.raises(LookupError, match="0xffffffff81000000"):
        it.run(counter)
    counter.remove()
    it.run(count=10)


# Attaching, removing


def test_hook_added_after_translation(engine, method):
    it = engine(STRAIGHT)
    it.run()
    counter = it.counter(method)
    it.run(counter)
    assert counter.instructions == 4


def test_removed_counter_keeps_its_counts_and_counts_no_more(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter)
    counts = counter.counts()
    counter.remove()
    counter.remove()
    it.run()
    assert counter.counts() == counts
    assert (counter.instructions, counter.unbalanced_returns) == (4, 0)
    with pytest.raises(CountingError, match="removed"):
        counter.begin()
    again = it.counter(method)
    it.run(again)
    assert again.counts() == counts


def test_misuse_is_refused(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    with pytest.raises(CountingError, match="never began"):
        counter.end(it.text, False)
    counter.begin()
    with pytest.raises(CountingError, match="during a run"):
        counter.reset()
    with pytest.raises(CountingError, match="during a run"):
        counter.remove()
    counter.end(it.text, False)
    counter.remove()


def test_several_counters_on_one_engine(engine):
    it = engine("mov ecx, 5; x: dec ecx; jnz x; nop; rep stosb; nop; ud2")
    counters = [it.counter(method) for method in ("native", "portable", "each", "native", "each")]
    it.run(*counters)
    assert it.offsets(counters[0]) == {0: 1, 5: 5, 7: 5, 9: 1, 10: 1, 12: 1}
    assert all(counter.counts() == counters[0].counts() for counter in counters)


def test_remove_frees_everything_without_the_collector(engine, method):
    it = engine(STRAIGHT)
    counter = it.counter(method)
    it.run(counter)
    gone = weakref.ref(counter)
    gc.disable()
    try:
        counter.remove()
        del counter
        assert gone() is None
    finally:
        gc.enable()
    it.run()


def test_dropped_counter_lives_as_long_as_the_engine(engine, method):
    it = engine(STRAIGHT)
    gone = weakref.ref(it.counter(method))
    gc.collect()
    it.run()
    assert gone() is not None
    del it
    gc.collect()
    assert gone() is None


def test_engine_refuses_what_is_no_method(engine):
    it = engine()
    with pytest.raises(CountingError, match="no counting method 'fast'"):
        it.counter("fast")
    with pytest.raises(CountingError, match="return_stack_depth 0"):
        it.counter(return_stack_depth=0)
