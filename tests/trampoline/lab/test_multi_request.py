"""Error codes: what a multi link is refused with, for every design, and that nothing is left of it.

Every code of the kernel's direct calls and of attaching to many, and the test that asks for it (``here``: this module):

==============================  ==============  ====================================================================
call                            code            test
==============================  ==============  ====================================================================
register_ftrace_direct          EINVAL          test_ftrace: refusals, unexpected_bytes; test_ftrace_ops: refusals;
                                                test_ftrace_direct: an_ops_in_use
                                EBUSY           test_ftrace: refusals (direct caller);
                                                test_ftrace_ops: only_one_user_may_change_the_ip
                                ENOMEM          test_ftrace: failing_at_will; test_ftrace_ops: failing_at_every_step
                                EAGAIN          test_ftrace_livepatch: a_direct_caller_that_is_to_be_asked_again
unregister_ftrace_direct        EINVAL          test_ftrace: refusals; test_ftrace_direct: an_ops_in_use
modify_ftrace_direct            EINVAL          test_ftrace: refusals; test_ftrace_direct: an_ops_in_use
                                EAGAIN          test_ftrace_livepatch: a_direct_caller_that_is_to_be_asked_again
ftrace_set_filter_ip(s)         EINVAL, ENOENT  test_ftrace: refusals; test_ftrace_ops: refusals
                                ENOMEM          test_ftrace_ops: failing_at_every_step
reset_ftrace_direct_ips         EINVAL, ENOENT, test_ftrace_direct: reset_refuses
                                EBUSY, ENOMEM
update_ftrace_direct_add        EINVAL          test_ftrace_direct: add_refuses
                                EBUSY, EAGAIN   test_ftrace_direct: add_and_mod_negotiate_with_livepatch
                                ENOMEM          test_ftrace_direct: failing_at_every_step
update_ftrace_direct_del        EINVAL          test_ftrace_direct: del_refuses
update_ftrace_direct_mod        EINVAL          test_ftrace_direct: mod_refuses_or_passes_over
                                EAGAIN          test_ftrace_direct: add_and_mod_negotiate_with_livepatch
kfunc_md: a program twice       EEXIST          test_kfunc_md_rules: users_and_programs_are_counted
kfunc_md: no such program       EINVAL          test_kfunc_md_rules: users_and_programs_are_counted
kfunc_md: more than 12 slots    EOPNOTSUPP      test_kfunc_md_rules: refusals
kfunc_md: memory                ENOMEM          test_kfunc_md_rules: a_failure_anywhere
multi link: no function         EINVAL          here: counts
multi link: too many            E2BIG           here: counts
multi link: type id             EINVAL          here: type_ids
multi link: unreadable          EFAULT          here: what_is_no_function
multi link: a program           EOPNOTSUPP      here: programs_are_no_functions
multi link: program type        EINVAL          here: wrong_programs
multi link: a function twice    EINVAL          here: a_function_twice
                                EEXIST          test_tracing_multi_rules: a_function_under_two_names
multi link: cookies             EINVAL          here: cookies
multi link: unknown             ENOENT          here: names
multi link: deny lists          EINVAL          here: names, functions_that_do_not_return
multi link: other prototype     EINVAL          test_part_match
multi link: argument slots      ENOTSUPP        here: argument_slots
                                EOPNOTSUPP      here: argument_slots (the posted series)
multi link: memory, patching    ENOMEM          test_multi_rollback
multi link: a full function     E2BIG           test_multi: a_full_function_at_the_end_refuses_all
multi link: a program twice     EBUSY           test_multi: refusals_leave_nothing_attached
                                EEXIST          test_tracing_multi_rules: a_program_twice
module: held                    EWOULDBLOCK     here: a_module_is_held_once
==============================  ==============  ====================================================================
"""

from errno import E2BIG, EBUSY, EEXIST, EFAULT, EINVAL, ENOENT, EOPNOTSUPP, EWOULDBLOCK

import pytest

from emu.kernel.text.functions import FunctionText
from refusals import errno_of, refused
from trampoline.bpf.errors import ENOTSUPP, TrampolineError
from trampoline.designs import DESIGNS
from trampoline.lab.lab import MAX_MULTI
from trampoline.lab.multi_request import check_multi

NAMES = ["bpf_fentry_test1", "bpf_fentry_test2", "bpf_fentry_test3"]
NOTHING = "xor eax, eax\nret"


def state(lab):
    kernel = lab.kernel
    kernel.rcu.settle()
    return (
        {name: kernel.machine.read(f.address, f.size) for name, f in kernel.functions.items()},
        sorted(kernel.execmem.images.values()), sorted(kernel.slab.objects.values()),
        sorted(kernel.percpu.objects.values()), len(lab.trampolines), kernel.ftrace.ops,
        dict(kernel.ftrace.direct_functions),
        {ip: record.flags for ip, record in kernel.ftrace.records.items()},
        {name: kernel.modules[name].refs for name in ("bpf_testmod",) if name in kernel.modules},
        [prog.refs for prog in lab.programs.loaded.values()],
    )  # fmt: skip


def has_own_codes(lab):
    """Whether it is the posted series, which has codes of its own (designs/test_tracing_multi_rules.py)."""
    return DESIGNS[lab.design.name].links == "multi"


@pytest.fixture(params=DESIGNS)
def lab(request, make_lab):
    return make_lab("7.2", design=request.param)


@pytest.fixture
def unchanged(lab):
    """Refuse an attachment with a code; nothing is different after it."""
    prog = lab.prog("fentry_multi", NOTHING)

    def check(code, functions, prog=prog, **options):
        before = state(lab)
        refused(code, lab.attach_multi, prog, functions, **options)
        assert state(lab) == before

    return check


def test_counts(lab, unchanged):
    unchanged(EINVAL, [])
    unchanged(EINVAL, [], cookies=[])
    unchanged(E2BIG, range(1, MAX_MULTI + 2))
    # The limit of the series is a number like any other.
    refused(E2BIG, check_multi, 102401, None, most=102400)
    check_multi(102400, None, most=102400)


def test_type_ids(lab, unchanged):
    unchanged(EINVAL, [NAMES[0], 0])
    unchanged(EINVAL, [NAMES[0], 1 << 31])
    refused(EINVAL, lab.attach, lab.prog("fentry", NOTHING), 0)
    ids = [lab.population.find(name).btf_id for name in NAMES]
    link = lab.attach_multi(lab.prog("fentry_multi", NOTHING), ids)
    assert link.functions == tuple(NAMES)
    link.detach()


@pytest.mark.parametrize("wrong", [None, 1.5, b"bpf_fentry_test1", ["bpf_fentry_test1"]])
def test_what_is_no_function(unchanged, wrong):
    unchanged(EFAULT, [NAMES[0], wrong])


def test_one_text_is_not_several_functions(lab):
    with pytest.raises(TrampolineError, match=r"\['bpf_fentry_test1'\]"):
        lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES[0])


def test_programs_are_no_functions(lab, unchanged):
    unchanged(EOPNOTSUPP, [NAMES[0], lab.prog("fentry", NOTHING)])


@pytest.mark.parametrize("kind", ["fentry", "fexit", "fmod_ret", "lsm", "fsession"])
def test_wrong_programs(lab, unchanged, kind):
    unchanged(EINVAL, NAMES, prog=lab.prog(kind, NOTHING))


@pytest.mark.parametrize("kind", ["fentry_multi", "fexit_multi", "fmod_ret_multi", "fsession_multi"])
def test_multi_programs_have_no_plain_link(lab, kind):
    prog = lab.prog(kind, NOTHING)
    before = state(lab)
    refused(EINVAL, lab.attach, prog, NAMES[0])
    assert state(lab) == before


def test_a_function_twice(lab, unchanged):
    if has_own_codes(lab):
        return
    function = lab.population.find(NAMES[0])
    for again in (NAMES[0], function, function.address, function.btf_id):
        unchanged(EINVAL, [*NAMES, again])
        unchanged(EINVAL, [*NAMES, again], skip_invalid=True)
    unchanged(EINVAL, ["bpf_fentry_test?", NAMES[0]])


def test_a_glob_leaves_out_what_is_there(lab):
    prog = lab.prog("fentry_multi", NOTHING)
    function = lab.population.find(NAMES[2])
    link = lab.attach_multi(prog, [NAMES[1], function, "bpf_fentry_test[1-4]", "bpf_fentry_test[45]"])
    assert [name[-1] for name in link.functions] == ["2", "3", "1", "4", "5"]
    link.detach()
    link = lab.attach_multi(prog, ["no_such_function", "bpf_fentry_test[12]"], skip_invalid=True)
    assert [skipped.name for skipped in link.skipped] == ["no_such_function"]
    link.detach()


def test_cookies(lab, unchanged):
    unchanged(EINVAL, NAMES, cookies=[1, 2])
    unchanged(EINVAL, NAMES, cookies=[1, 2, 3, 4])
    unchanged(EINVAL, NAMES, cookies=[])
    unchanged(EINVAL, ["bpf_fentry_test?"], cookies=[1])
    for cookie in (-1, 1 << 64):
        with pytest.raises(TrampolineError, match="unsigned 64-bit"):
            lab.attach_multi(lab.prog("fentry_multi", NOTHING), NAMES[:1], cookies=[cookie])


def test_names(lab, unchanged):
    unchanged(ENOENT, [*NAMES, "no_such_function"])
    unchanged(ENOENT, [*NAMES, "no_such_*"])
    unchanged(ENOENT, [*NAMES, "no_such_module:*"])
    unchanged(ENOENT, [*NAMES, lab.population.find(NAMES[0]).address + 1])
    # No patch site; on a deny list.
    unchanged(EINVAL, [*NAMES, "tramplab_notrace"])
    unchanged(EINVAL, [*NAMES, "migrate_disable"])


def test_functions_that_do_not_return(lab, unchanged):
    lab.kernel.add_functions(FunctionText("do_exit", "ret", "void do_exit(long code)"))
    before = lab.prog("fentry_multi", NOTHING)
    lab.attach_multi(before, ["do_exit"]).detach()
    for kind in ("fexit_multi", "fmod_ret_multi", "fsession_multi"):
        unchanged(EINVAL, [*NAMES, "do_exit"], prog=lab.prog(kind, NOTHING))


@pytest.mark.parametrize("design", DESIGNS)
def test_argument_slots(make_lab, design):
    lab = make_lab("6.1", design=design)
    prog = lab.prog("fentry_multi", NOTHING)
    before, code = state(lab), EOPNOTSUPP if has_own_codes(lab) else ENOTSUPP
    refused(code, lab.attach_multi, prog, [*NAMES, "tramplab_args7"])
    assert state(lab) == before
    link = lab.attach_multi(prog, [f"tramplab_args{count}" for count in range(13)], skip_invalid=True)
    assert {skipped.errno for skipped in link.skipped} == {code}
    # Without padding tracing-multi-v1 is on no function.
    assert len(link.functions) == (0 if design == "tracing-multi-v1" else 7)
    link.detach()


def test_a_link_of_nothing_but_skipped_functions(lab):
    before = state(lab)
    prog = lab.prog("fentry_multi", NOTHING)
    link = lab.attach_multi(prog, ["no_such_function"], skip_invalid=True)
    assert link.functions == ()
    link.detach()
    lab.unload(prog)
    assert state(lab) == before


def test_sleepable_programs(lab, unchanged):
    prog = lab.prog("fentry_multi", NOTHING, sleepable=True)
    before = state(lab)
    if refusal := errno_of(lambda: lab.attach_multi(prog, NAMES).detach()):
        assert refusal == EINVAL
    assert state(lab) == before


@pytest.fixture
def testmod(lab):
    lab.load_testmod()
    return lab.kernel.modules["bpf_testmod"]


def test_a_module_is_held_once(lab, testmod):
    prog, unload = lab.prog("fentry_multi", NOTHING), lambda: lab.kernel.modules.unload("bpf_testmod")
    for count in (1, 3):
        names = [f"bpf_testmod:bpf_testmod_test_struct_arg_{number}" for number in range(1, 1 + count)]
        link = lab.attach_multi(prog, [NAMES[0], *names])
        trampolines = [trampoline for trampoline in lab.trampolines if trampoline.target.module]
        assert testmod.refs - len(trampolines) == 1
        refused(EWOULDBLOCK, unload)
        link.detach()
        assert testmod.refs == 0
    unload()


def test_globs_of_modules(lab, testmod, unchanged):
    prog, structs = lab.prog("fentry_multi", NOTHING), "bpf_testmod:bpf_testmod_test_struct_arg_"
    link = lab.attach_multi(prog, [NAMES[0], "*mod:*struct_arg_[1-3]"])
    assert link.functions == (NAMES[0], *(structs + number for number in "123"))
    link.detach()
    link = lab.attach_multi(prog, ["bpf_testmod:*"], skip_invalid=True)
    assert len(link.functions) + len(link.skipped) == len(testmod.functions)
    link.detach()
    unchanged(ENOENT, ["mod:*"])


def test_a_refusal_does_not_hold_the_module(lab, testmod, unchanged):
    prog = lab.prog("fentry_multi", NOTHING)
    link = lab.attach_multi(prog, [NAMES[0]])
    names = ["bpf_testmod:bpf_testmod_test_struct_arg_1", NAMES[0]]
    if lab.design.name == "tracing-multi-v2":
        # It leaves what its defects say.
        refused(EEXIST, lab.attach_multi, prog, names)
        return
    unchanged(EEXIST if has_own_codes(lab) else EBUSY, names, prog=prog)
    assert testmod.refs == 0
    link.detach()
    lab.kernel.modules.unload("bpf_testmod")
