"""The JIT alone: what its code means, what boots and flavours change, what it refuses."""

import pytest
from kernel_releases import RELEASES

from asm import decode
from trampoline.bpf.boot import Boot
from trampoline.bpf.isa import parse
from trampoline.bpf.isa.insn import CALL, EXIT, GOTOX, NOSPEC, TAIL_CALL, Insn
from trampoline.bpf.jit.bpf_int_jit_compile import compile_func
from trampoline.bpf.jit.errors import JitError
from trampoline.bpf.jit.jit_input import JitArena, JitFunc, Poke
from trampoline.bpf.jit.rules import IndirectJump, JitBoot

ADDRESS = 0xFFFFFFFFC0001000
BASE = 0xFFFFFFFF81234000
RCX = 1


def compile_insns(insns, flavour="7.2", boot=None, **fields):
    func = JitFunc(tuple(insns), BASE, **fields)
    return compile_func(func, ADDRESS, RELEASES[flavour].jit, boot or JitBoot())


def compile_text(text, flavour="7.2", boot=None, **fields):
    return compile_insns(parse(text, rewritten=True), flavour, boot, **fields)


def listing(code, address=ADDRESS):
    return [f"{i.mnemonic} {i.operands}".strip() for i in decode(code, address)]


def body(image):
    """Instructions between the prologue and the last exit."""
    start = image.offsets[0]
    return listing(image.code[start : image.offsets[-2]], image.address + start)


def of(*insns, **options):
    return body(compile_insns([*insns, Insn(EXIT)], **options))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("r1 += r7", ["add rdi, r13"]),
        ("w0 = 0", ["xor eax, eax"]),
        ("r5 = -1", ["mov r8, 0xffffffffffffffff"]),
        ("w5 = -1", ["mov r8d, 0xffffffff"]),
        ("r6 *= 1000", ["imul rbx, rbx, 0x3e8"]),
        ("r0 = be16 r0", ["ror ax, 8", "movzx eax, ax"]),
        ("r8 = bswap64 r8", ["bswap r14"]),
        ("r1 = (s8)r2", ["movsx rdi, sil"]),
        ("w1 = (s16)w2", ["movsx edi, si"]),
        ("w0 s/= w3", None),
        ("r2 = *(s16 *)(r3 + 300)", ["movsx rsi, word ptr [rdx + 0x12c]"]),
        ("*(u8 *)(r1 + 0) = r2", ["mov byte ptr [rdi], sil"]),
        ("*(u64 *)(r10 - 8) = -2", ["mov qword ptr [rbp - 8], 0xfffffffffffffffe"]),
        ("lock *(u64 *)(r1 + 0) += r2", ["lock add qword ptr [rdi], rsi"]),
    ],
)
def test_instructions_mean_what_they_say(text, code):
    got = body(compile_text(f"{text}\nexit"))
    if code is None:
        assert "idiv r11d" in got
        assert got[0] == "push rdx"
    else:
        assert got == code


@pytest.mark.parametrize("flavour", RELEASES)
def test_saved_registers_are_those_in_use(flavour):
    image = compile_text("r7 = r1\nr9 = r7\nr0 = r9\nexit", flavour)
    lines = listing(image.code)
    assert [line for line in lines if line.startswith("push")] == ["push rbp", "push r13", "push r15"]
    assert [line for line in lines if line.startswith("pop")] == ["pop r15", "pop r13"]
    assert lines[-3:] == ["leave", "ret", "int3"]


def test_shifts_by_a_register_take_bmi2_only_where_it_is():
    shift = parse("r1 <<= r2")[0]
    by_rcx = ["push rcx", "mov rcx, rsi", "shl rdi, cl", "pop rcx"]
    assert of(shift) == ["shlx rdi, rdi, rsi"]
    assert of(shift, boot=JitBoot(bmi2=False)) == by_rcx
    assert of(shift, flavour="6.1") == by_rcx
    of_rcx = parse("r4 >>= r2")[0]
    assert of(of_rcx, boot=JitBoot(bmi2=False)) == ["mov r11, rcx", "mov rcx, rsi", "shr r11, cl", "mov rcx, r11"]
    assert of(of_rcx, flavour="6.1") == [
        "mov r11, rcx",
        "push rcx",
        "mov rcx, rsi",
        "shr r11, cl",
        "pop rcx",
        "mov rcx, r11",
    ]


def test_calls_are_accounted_where_the_boot_counts_their_depth():
    boot = JitBoot(Boot(return_thunk=BASE + 0x500, call_depth_offset=0xFFFFFFFF82000010))
    image = compile_insns([Insn(CALL, imm=0x100), Insn(EXIT)], boot=boot)
    start = image.offsets[0]
    assert image.code[start : start + 4].hex() == "6548c13d"
    # The displacement counts from the end of the instruction, behind its immediate.
    end = ADDRESS + start + 9
    displacement = int.from_bytes(image.code[start + 4 : start + 8], "little", signed=True)
    assert (end + displacement) & (1 << 64) - 1 == 0xFFFFFFFF82000010
    assert f"call {BASE + 0x100:#x}" in listing(image.code)
    assert listing(image.code)[-1] == f"jmp {BASE + 0x500:#x}"


@pytest.mark.parametrize(
    ("boot", "code"),
    [
        (JitBoot(), ["jmp r13", "int3"]),
        (JitBoot(indirect_jump=IndirectJump.LFENCE), ["lfence", "jmp r13"]),
        (JitBoot(indirect_jump=IndirectJump.THUNK, thunks={13: BASE}), [f"jmp {BASE:#x}"]),
    ],
)
def test_jumps_by_a_register_follow_the_boots_mitigation(boot, code):
    image = compile_insns([Insn(GOTOX, 7), Insn(EXIT)], boot=boot, indirect_targets=frozenset({1}))
    assert body(image) == code
    assert listing(image.code[image.offsets[1] : image.offsets[2]])[0] == "endbr64"


def test_a_jump_by_a_register_without_a_known_thunk_is_refused():
    boot = JitBoot(indirect_jump=IndirectJump.THUNK, thunks={RCX: BASE})
    with pytest.raises(JitError, match="no thunk for jumps by r13") as raised:
        compile_insns([Insn(GOTOX, 7), Insn(EXIT)], boot=boot)
    assert raised.value.slot == 0


def test_classic_unprivileged_programs_clear_the_branch_history():
    boot = JitBoot(clear_bhb_loop=BASE + 0x40)
    lines = listing(compile_insns([Insn(EXIT)], boot=boot, from_classic=True, unprivileged=True).code)
    end = lines.index("push rax")
    assert lines[end : end + 5] == ["push rax", "push rcx", f"call {BASE + 0x40:#x}", "pop rcx", "pop rax"]
    assert f"call {BASE + 0x40:#x}" not in listing(compile_insns([Insn(EXIT)], boot=boot, from_classic=True).code)
    by_instruction = JitBoot(clear_bhb_instruction=True)
    code = compile_insns([Insn(EXIT)], boot=by_instruction, from_classic=True, unprivileged=True).code
    assert code.endswith(bytes.fromhex("f3480f1ef8 c9 c3cc"))


def test_probed_loads_have_an_extable_entry_and_know_the_size_of_user_memory():
    load = Insn(0x39, 8, 1, 0x40)  # r8 = *(u64 *)(r1 + 0x40), PROBE_MEM
    for flavour, limit in (("6.1", 1 << 47 | 0x40), ("7.2", (1 << 47) + (10 << 20))):
        image = compile_insns([load, Insn(EXIT)], flavour)
        (entry,) = image.extable
        assert listing(image.code[entry.offset :])[0] == "mov r14, qword ptr [rdi + 0x40]"
        assert entry.fixup == 4 | 0x08 << 8  # four bytes on, and pt_regs.r14 is cleared
        assert any(line.endswith(f"{limit:#x}") for line in body(image))
        wide = compile_insns([load, Insn(EXIT)], flavour, JitBoot(five_level_paging=True))
        assert any(line.endswith(f"{limit - (1 << 47) + (1 << 56):#x}") for line in body(wide))


def test_a_direct_tail_call_jumps_past_itself_until_its_slot_is_filled():
    insns = [Insn(TAIL_CALL, imm=1), Insn(EXIT)]
    empty = compile_insns(insns, pokes=(Poke(),))
    full = compile_insns(insns, pokes=(Poke(BASE + 0x10),))
    (place,) = empty.pokes
    assert full.pokes == (place,)
    assert listing(empty.code[place.bypass :], ADDRESS + place.bypass)[0] == f"jmp {ADDRESS + place.target + 5:#x}"
    assert empty.code[place.target : place.target + 5].hex() == "0f1f440000"
    assert full.code[place.bypass : place.bypass + 5].hex() == "0f1f440000"
    assert listing(full.code[place.target :], ADDRESS + place.target)[0] == f"jmp {BASE + 0x10:#x}"


def test_jumps_over_far_code_are_long_and_short_ones_stop_at_123_bytes():
    def over(count):
        image = compile_text("if r1 == 0 goto l\n" + "r1 += 5\n" * count + "l: exit")
        return image.offsets[1] - image.offsets[0] - len(bytes.fromhex("4885ff"))

    assert over(123 // 4) == 2  # 120 bytes
    assert over(124 // 4) == 6  # 124 bytes


def test_a_jump_back_is_measured_from_the_end_of_its_long_form():
    def back(count):
        image = compile_text("l: " + "r1 += 5\n" * count + "if r1 != 0 goto l\nexit")
        return image.offsets[count + 1] - image.offsets[count] - len(bytes.fromhex("4885ff"))

    assert back(29) == 2  # 116 bytes of additions, 3 of test, 6 of jne
    assert back(30) == 6  # 129 bytes, though the short form would reach


def test_a_jump_to_the_next_instruction_is_nothing():
    image = compile_text("goto l\nl: r0 = 1\nexit")
    assert image.offsets[0] == image.offsets[1]


def test_what_still_shrinks_after_fifteen_passes_is_padded():
    """Jumps whose targets come into reach one pass after the other, from the last to the first."""
    count = 40
    lines = []
    for number in range(count):
        lines.append(f"l{number}: if r1 == {number} goto l{number + 1}_far")
        lines += ["r1 += 5"] * 28
        lines.append(f"l{number}_far: r1 += 5")
    text = "\n".join([*lines, f"l{count}_far: exit"])
    image = compile_text(text.replace("l0_far: ", "", 1))
    assert image.code.count(bytes.fromhex("4883c705")) == 29 * count
    decoded = list(decode(image.code, ADDRESS))
    places = {i.address - ADDRESS for i in decoded}
    assert set(image.offsets[:-1]) <= places


def test_functions_of_a_private_stack_use_r9():
    boot = JitBoot(this_cpu_off=0xFFFFFFFF83000028)
    image = compile_text("*(u64 *)(r10 - 8) = r1\nexit", boot=boot, stack_depth=72, private_stack=0x1000)
    lines = listing(image.code)
    assert "mov r9d, 0x1050" in lines  # a guard of 8 bytes, then 72 of stack
    assert "mov qword ptr [r9 - 8], rdi" in lines
    assert not any(line.startswith("sub rsp") for line in lines)
    call = body(compile_insns([Insn(CALL, imm=64), Insn(EXIT)], boot=boot, private_stack=0x1000))
    assert call == ["push r9", f"call {BASE + 64:#x}", "pop r9"]


def test_a_speculation_barrier_is_a_fence():
    assert of(Insn(NOSPEC)) == ["lfence"]


STX, LDX, DW = 3, 1, 0x18
# 80 is the offset of rax in pt_regs, 112 that of rdi, 104 that of rsi; 1 says that none is cleared.
RAX, RDI, RSI, NONE = 80, 112, 104, 1


@pytest.mark.parametrize(
    ("insn", "answers"),
    [
        # rdi is the base of each, at offset 8.
        (Insn(LDX | DW | 0xA0, 0, 1, 8), {"6.12": (RAX, None), "6.18": (RAX, RDI), "7.2": (RAX, RDI)}),
        (Insn(STX | DW | 0xA0, 1, 2, 8), {"6.12": (NONE, None), "6.18": (NONE, RDI), "7.2": (NONE, RDI, 1)}),
        (Insn(STX | DW | 0xE0, 1, 2, 8, 1), {"6.12": (NONE, None), "6.18": (NONE, RDI), "7.2": (RSI, RDI, 1)}),
        # load_acquire of r0 from r1: 6.18 takes it for a store through r0.
        (Insn(STX | DW | 0xE0, 0, 1, 8, 0x100), {"6.18": (NONE, RAX), "7.2": (RAX, RDI)}),
    ],
)
def test_what_the_extable_says_of_an_access_to_an_arena(insn, answers):
    for flavour, (cleared, base, *writes) in answers.items():
        image = compile_insns([insn, Insn(EXIT)], flavour, arena=JitArena(1 << 40))
        (entry,) = image.extable
        assert (entry.fixup & 0xFF, entry.fixup >> 8 & 0xFF) == (entry.fixup & 0xF, cleared), flavour
        access = 0 if base is None else 1 << 31 | base << 16 | (1 << 30 if writes else 0)
        assert entry.fixup & ~0xFFFF & 0xFFFFFFFF == access, flavour
        assert entry.data >> 16 == (0 if base is None else 8), flavour


@pytest.mark.parametrize(
    ("insns", "fields", "reason"),
    [
        ([Insn(CALL)], {}, "slot 0: a call without a target"),
        ([Insn(CALL, imm=-0x80000000)], {}, "out of reach"),
        ([Insn(TAIL_CALL, imm=1)], {}, "slot 0: tail call of poke descriptor 1, there are 0"),
        ([Insn(0xBF, 1, 12)], {"flavour": "6.12"}, "slot 0: no register 12"),
        ([Insn(0xBF, 1, 11)], {}, "slot 0: no register 11"),
        ([Insn(0xBF, 1, 1, -1)], {}, "needs the address of this_cpu_off"),
        ([Insn(0xBF, 1, 1, 1)], {}, "without an arena"),
        ([Insn(0xE5, 0, 0, 0)], {}, "slot 0: a jump of code 0xe5"),
        ([Insn(0x05, off=1)], {}, "slot 0: a jump to slot 2, where the function has no instruction"),
        ([Insn(0x05, off=-2)], {}, "slot 0: a jump to slot -1, where"),
        ([Insn(0x05, off=1), Insn(0x18)], {}, "slot 0: a jump to slot 2, where"),
        ([Insn(0x39, 10, 1)], {}, "slot 0: an access that may fault uses the frame pointer"),
        ([Insn(0x20)], {}, "slot 0: an instruction of code 0x20"),
        ([Insn(0xFB, 1, 2, 0, 0x51)], {"arena": JitArena(1 << 40)}, "that needs a loop"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_place(insns, fields, reason):
    with pytest.raises(JitError, match=reason):
        compile_insns([*insns, Insn(EXIT)], **fields)
