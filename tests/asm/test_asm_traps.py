"""What the encoder is known to get wrong, abort at, or never return from: one test each."""

import subprocess
import sys
import threading

import pytest

from asm import AsmError, AssemblySyntaxError, EncodingMismatch, assemble
from asm.engines import check_numbers, keystone


class Hexadecimal:
    """An engine as it is after somebody set `.syntax` or `.sym_resolver`: 10 is read as 0x10."""

    def asm(self, text, address, as_bytes):
        return keystone().asm(text.replace("10", "0x10").replace("0x0x", "0x"), address, as_bytes)


def test_an_engine_that_reads_decimal_as_hexadecimal_is_refused():
    check_numbers(keystone())
    with pytest.raises(AsmError, match="mov eax, 10"):
        check_numbers(Hexadecimal())


def test_numbers_are_what_they_look_like():
    for text in ("add rax, 10", "add rax, 0xa", "add rax, 0b1010", "add rax, 0XA"):
        assert assemble(text).code.hex() == "4883c00a"


def test_targets_are_not_four_too_high():
    symbols = {"fn": 0xFFFFFFFF81000000}
    assert assemble("call fn", 0xFFFFFFFF81000000 - 5, symbols).code.hex() == "e800000000"
    assert assemble("lea rax, [rip + fn]", 0xFFFFFFFF81000000 - 7, symbols).code.hex() == "488d0500000000"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("mov rdi, [0x10]", "488b3c2510000000"),
        ("mov rdi, gs:[0x10]", "65488b3c2510000000"),
        ("mov rdi, gs:[pc]", "65488b3c2510000000"),
        ("mov rdi, [pc]", "488b3c2510000000"),
        ("add qword ptr gs:[pc], 0x11223344", "654881042510000000" "44332211"),
    ],
)
def test_absolute_addresses_stay_absolute(text, want):
    assert assemble(text, 0xFFFFFFFFC0000000, {"pc": 0x10}).code.hex() == want


def test_symbols_in_displacements_keep_their_sign():
    assert assemble("mov rax, [rbp - off]", 0, {"off": 8}).code.hex() == "488b45f8"
    assert assemble("mov rax, [rbp + off]", 0, {"off": -8}).code.hex() == "488b45f8"
    assert assemble("mov rax, [rbp - off]", 0, {"off": -8}).code.hex() == "488b4508"


@pytest.mark.parametrize("text", ["mov rax, [riz + 8]", "mov rax, [rax + riz]", "mov rax, [riz*2]", "mov eax, [eiz]"])
def test_no_index_is_no_register(text):
    with pytest.raises(AssemblySyntaxError):
        assemble(text)


def test_pushes_of_wide_numbers():
    with pytest.raises(EncodingMismatch):
        assemble("push 0x81000000")
    with pytest.raises(EncodingMismatch):
        assemble("push 0xffff0000")
    assert assemble("push 0x7fffffff").code.hex() == "68ffffff7f"


def test_sequences_that_the_encoder_does_not_know():
    assert assemble("endbr64\nint3\nint 3\nnop5\nnop dword ptr [rax]").code.hex() == (
        "f30f1efa" "cc" "cd03" "0f1f440000" "0f1f00"
    )


@pytest.mark.parametrize("text", ["jmp short 5", "jmp $", "jmp 1b", "notrack jmp rax", "bnd ret"])
def test_other_assemblers_words(text):
    with pytest.raises(AssemblySyntaxError):
        assemble(text)


def test_moves_of_numbers_take_the_written_form():
    assert assemble("mov rdi, 0x81000000").lines[0].text == "movabs rdi, 0x81000000"
    assert assemble("mov rdi, 0x7fffffff").code.hex() == "48c7c7ffffff7f"
    assert assemble("mov edi, 0x81000000").code.hex() == "bf00000081"


def test_numbers_are_not_cut_to_the_operand():
    too_wide = ["mov al, 0x1ff", "add eax, 0x1ffffffff", "ret 0x10000", "int 0x180", "out 0x180, al", "and bx, 0x1ffff"]
    for text in too_wide:
        with pytest.raises(AsmError):
            assemble(text)


@pytest.mark.parametrize("text", ["", " ", "\n", ";", "x:", "\t; only this"])
def test_empty_text(text):
    assert assemble(text).code == b""


# Each of these, handed over as it is, hangs the process or ends it.
DEADLY = [
    *(f"{prefix} [rax]" for prefix in ("lock", "rep", "repe", "repz", "repne", "repnz", "data16", "rex64")),
    *(f"{prefix} -1" for prefix in ("lock", "rep", "repe", "repne", "data16", "rex64")),
    "lock lock [rax]",
    "rep lock -1",
    "cmpsd [rax + rax*2], qword ptr [rax]",
    "cmpsq word ptr gs:[rax], [rax]",
    "movsd [rbx], [rcx]",
    "movsq [eax], [ebx]",
    "stosq [rbx]",
    "xlatb [rbx + rax*2]",
    "outsb dx, [rax]",
    "mov ah, r8b",
    "mov r8b, ah",
    "mov ah, sil",
    "movzx rax, ah",
    "movzx r8d, ch",
    "add byte ptr [r8], dh",
    "add byte ptr [rax + r9], bh",
    "xchg ah, dil",
    "crc32 rax, ah",
]


@pytest.mark.parametrize("text", DEADLY)
def test_deadly_inputs_are_refused(text):
    with pytest.raises(AssemblySyntaxError):
        assemble(text)


@pytest.mark.parametrize("text", ["lock [rax]", "mov ah, r8b"])
def test_what_is_called_deadly_is(text):
    """Else the parser would refuse something for nothing: a newer encoder may let us drop the rule."""
    code = (
        "import sys; from keystone import *\n"
        "try: Ks(KS_ARCH_X86, KS_MODE_64).asm(sys.argv[1])\n"
        "except KsError: pass\n"
        "print('survived')"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, timeout=3)
    except subprocess.TimeoutExpired:
        return
    assert "survived" not in done.stdout


def test_threads_have_engines_of_their_own():
    texts = [f"add rax, {number}\nmov [rbp - {number}], rcx\nimul rdx, rbx, {number}" for number in range(1, 400)]
    want = [assemble(text).code for text in texts]
    engines = set()
    wrong = []

    def work(start):
        engines.add(id(keystone()))
        for text, code in zip(texts[start:], want[start:], strict=True):
            # A line of its own for each thread, so that the cache doesn't answer.
            mine = assemble(f"{text}\nadd qword ptr [rbx + {len(text) + start * 1000}], {start}")
            if not mine.code.startswith(code):
                wrong.append(text)
        barrier.wait()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(engines) == 4


def test_caches_are_bounded():
    from asm import assembler, encoder

    cache = {}
    for number in range(100):
        encoder.remember(cache, number, number, size=10)
        assert cache[number] == number
        assert len(cache) <= 10
    assert max(len(assembler._parsed), len(encoder._cache)) <= encoder.CACHE_SIZE
