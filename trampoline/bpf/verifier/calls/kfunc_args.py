"""Arguments of kernel functions, by the types of their prototypes (``check_kfunc_args``)."""

from dataclasses import dataclass
from errno import EFAULT

from trampoline.bpf.btf.btf import BtfKind as BtfKind
from trampoline.bpf.btf.btf import Func, Type
from trampoline.bpf.helpers.kfuncs import Kf, Kfunc
from trampoline.bpf.verifier.access.memory import check_ptr_off_reg
from trampoline.bpf.verifier.access.pointers import TRUSTED_MODIFIERS, is_trusted
from trampoline.bpf.verifier.access.struct_walk import same_struct
from trampoline.bpf.verifier.calls.irq_slots import use_irq_flag
from trampoline.bpf.verifier.calls.iter_slots import use_iterator
from trampoline.bpf.verifier.state.env import Env
from trampoline.bpf.verifier.state.state import Reg
from trampoline.bpf.verifier.values.kinds import Flag, RegKind

_SCALARS = (BtfKind.INT, BtfKind.ENUM, BtfKind.ENUM64)
_STRUCTS = (BtfKind.STRUCT, BtfKind.UNION)
_SESSION = ("bpf_session_cookie", "bpf_session_is_return")
_NULLABLE = ("__nullable", "__opt")


@dataclass(slots=True)
class KfuncCall:
    """One call, and data collected from its arguments (``struct bpf_kfunc_call_arg_meta``)."""

    kfunc: Kfunc
    func: Func
    constant: int | None = None
    """Value of the argument that must be constant (``__k``)."""
    ref_obj_id: int = 0
    release_regno: int = 0
    context: bool = False
    iterator: tuple[int, int] = (0, 0)
    """(frame, first slot) of the iterator's state."""


def argument(env: Env, index: int) -> str:
    """Name of an argument in messages."""
    return f"R{index + 1}" if env.kernel.rules.kfuncs.names_registers else f"arg#{index}"


def check_kfunc_args(env: Env, call: KfuncCall) -> None:
    """Check R1 to R5 as far as the prototype has them."""
    btf = env.kernel.btf
    types, _ = btf.prototype(call.func.proto_id)
    names = btf.parameter_names(call.func.proto_id)
    if len(types) > 5:
        env.unsupported("arguments on the stack of kernel functions")
    for index, (type_id, name) in enumerate(zip(types, names, strict=True)):
        if not name.endswith("__ign"):
            _check(env, call, index, btf.unmodified(type_id), name)
    if call.kfunc.has(Kf.RELEASE) and not call.release_regno:
        newer = env.kernel.rules.kfuncs.names_registers
        what = "kfunc" if newer else "kernel function"
        need = "referenced PTR_TO_BTF_ID passed to R1" if newer else "refcounted PTR_TO_BTF_ID"
        env.invalid(f"release {what} {call.kfunc.name} expects {need}")


def _check(env: Env, call: KfuncCall, index: int, kind: Type, name: str) -> None:
    regno = index + 1
    reg = env.read(regno)
    if kind.kind in _SCALARS:
        _number(env, call, regno, reg, name)
        return
    if kind.kind is not BtfKind.PTR:
        env.invalid(f"Unrecognized {argument(env, index)} type {kind.kind.name}")
    nullable = name.endswith(_NULLABLE)
    if _wants_trust(env, call) and (reg.is_null or reg.maybe_null) and not nullable:
        where = f"R{regno}" if env.kernel.rules.kfuncs.names_registers else f"arg{index}"
        env.denied(f"Possibly NULL pointer passed to trusted {where}")
    if nullable and reg.is_null:
        return
    if reg.ref_obj_id:
        if call.kfunc.has(Kf.RELEASE):
            if call.ref_obj_id:
                env.refuse(EFAULT, "more than one arg with ref_obj_id")
            call.release_regno = regno
        call.ref_obj_id = reg.ref_obj_id
    pointed = env.kernel.btf.unmodified(kind.type_id)
    if call.kfunc.name in _SESSION or call.kfunc.name == "bpf_cast_to_kern_ctx":
        _context(env, call, index, reg)
    elif pointed.kind in _STRUCTS and pointed.name.startswith("bpf_iter_") and index == 0:
        use_iterator(env, call, regno, pointed)
    elif name.endswith("__irq_flag"):
        use_irq_flag(env, call.kfunc.name == "bpf_local_irq_save", regno, argument(env, index))
    elif pointed.kind in _STRUCTS and not name.endswith(("__str", "__map", "__alloc", "__uninit")):
        _struct(env, call, index, reg, pointed)
    else:
        env.unsupported(f"the arguments of {call.kfunc.name}")


def _wants_trust(env: Env, call: KfuncCall) -> bool:
    flags = Kf.TRUSTED_ARGS | Kf.RELEASE | Kf.RCU
    return env.kernel.rules.kfuncs.trusted_by_default or call.kfunc.has(flags)


def _number(env: Env, call: KfuncCall, regno: int, reg: Reg, name: str) -> None:
    if not reg.is_scalar:
        env.invalid(f"R{regno} is not a scalar")
    if name.endswith("__k"):
        if not reg.var.is_const:
            env.invalid(f"R{regno} must be a known constant")
        call.constant = reg.var.value


def _context(env: Env, call: KfuncCall, index: int, reg: Reg) -> None:
    if reg.kind is not RegKind.PTR_TO_CTX:
        got = env.type_name(reg)
        env.invalid(f"{argument(env, index)} expected pointer to ctx, but got {got}")
    check_ptr_off_reg(env, index + 1)
    call.context = True


def _struct(env: Env, call: KfuncCall, index: int, reg: Reg, pointed: Type) -> None:
    """A pointer to a struct of the kernel (``KF_ARG_PTR_TO_BTF_ID``)."""
    regno = index + 1
    if reg.kind is not RegKind.PTR_TO_BTF_ID:
        if reg.kind in (RegKind.PTR_TO_SOCK_COMMON, RegKind.PTR_TO_SOCKET, RegKind.PTR_TO_TCP_SOCK):
            env.unsupported("sockets as arguments of kernel functions")
        if reg.kind in (RegKind.PTR_TO_STACK, RegKind.PTR_TO_MAP_VALUE, RegKind.PTR_TO_MEM) and not _wants_trust(
            env, call
        ):
            env.unsupported("memory as an argument of kernel functions")
        got = env.type_name(reg)
        env.invalid(f"{argument(env, index)} is {got} expected ptr_ or socket")
    if _wants_trust(env, call) and env.kernel.rules.calls.trusted and not is_trusted(reg):
        if not call.kfunc.has(Kf.RCU):
            env.invalid(f"R{regno} must be referenced or trusted")
        if not reg.has(Flag.MEM_RCU):
            env.invalid(f"R{regno} must be a rcu pointer")
    if call.kfunc.has(Kf.RELEASE) and reg.ref_obj_id:
        if reg.off:
            env.invalid(f"R{regno} must have zero offset when passed to release func or trusted arg to kfunc")
        check_ptr_off_reg(env, regno)
    else:
        check_ptr_off_reg(env, regno, fixed_off_ok=True)
    if reg.flags & ~TRUSTED_MODIFIERS and not reg.has(Flag.MEM_RCU):
        got = env.type_name(reg)
        env.invalid(f"{argument(env, index)} is {got} expected ptr_ or socket")
    btf = reg.btf or env.kernel.btf
    strict = call.kfunc.has(Kf.RELEASE) and bool(reg.ref_obj_id)
    if not same_struct(btf, reg.btf_id, reg.off, env.kernel.btf, pointed.id, strict=strict):
        held = btf.type(reg.btf_id)
        which = f"R{regno}" if env.kernel.rules.kfuncs.names_registers else f"args#{index}"
        wanted = f"expected pointer to {pointed.kind.name} {pointed.name}"
        has = f"but R{regno} has a pointer to {held.kind.name} {held.name}"
        env.invalid(f"kernel function {call.kfunc.name} {which} {wanted} {has}")
