"""Attach programs to a function of the synthetic kernel, call it, and see what each cost."""

from trampoline.lab import Lab


def trace(flavour: str) -> None:
    seen: list[str] = []
    with Lab(flavour) as lab:
        lab.attach(lab.prog("fentry", lambda ctx: seen.append(f"arguments {ctx.args}")), "bpf_fentry_test2")
        lab.attach(lab.prog("fexit", lambda ctx: seen.append(f"returns {ctx.ret}")), "bpf_fentry_test2")
        call = lab.call("bpf_fentry_test2", 2, 3)
        print(f"kernel {flavour}: {', '.join(seen)}")
        if call.counts is not None:
            phases = ", ".join(f"{phase} {count}" for phase, count in call.counts.by_phase.items())
            print(f"  {call.counts.instructions} instructions: {phases}")


def main() -> None:
    for flavour in ("6.1", "6.12", "7.2"):
        trace(flavour)


if __name__ == "__main__":
    main()
