"""Functions that tracing programs are refused on, whatever their prototype (kernel/bpf/verifier.c)."""

BTF_ID_DENY = frozenset(
    {
        "migrate_disable",
        "migrate_enable",
        "rcu_read_unlock_strict",
        "preempt_count_add",
        "preempt_count_sub",
        "__rcu_read_lock",
        "__rcu_read_unlock",
    }
)
"""``btf_id_deny``: what a trampoline itself calls or runs under. -EINVAL for every program."""

MIGRATE_INLINE_DENY = frozenset({"___migrate_enable"})
"""What joined ``btf_id_deny`` when migrate_enable() was inlined."""

NORETURN_DENY = frozenset(
    {
        "__ia32_sys_exit",
        "__ia32_sys_exit_group",
        "__kunit_abort",
        "__module_put_and_kthread_exit",
        "__x64_sys_exit",
        "__x64_sys_exit_group",
        "do_exit",
        "do_group_exit",
        "kthread_complete_and_exit",
        "kunit_try_catch_throw",
        "make_task_dead",
    }
)
"""``noreturn_deny`` (cfe816d469dc, 6.15; without kthread_exit since 7fe44c438814): fexit and fmod_ret would hold their
image for ever. -EINVAL.
"""
