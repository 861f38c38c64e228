"""Step a call through its trampoline, forwards and backwards, with the stack frame by name."""

from trampoline.bpf.prog import Uses
from trampoline.lab import Lab
from trampoline.tools.debugger import AtAddress, BpfDebugger, DebugStop


def show(debugger: BpfDebugger, did: str, stop: DebugStop) -> None:
    """One line: what was done, why it stopped, and the next instruction."""
    line = f"{did:<22} {stop.reason:<10} {debugger.position:>3}"
    if debugger.thread.is_done:
        print(f"{line}  {stop.message}")
        return
    code = debugger.code_line(debugger.rip)
    comment = f"  ; {code.comment}" if code.comment else ""
    print(f"{line}  {code.symbol:<33} {code.phase or '':<8} {code.text}{comment}")


def main() -> None:
    with Lab("6.12") as lab:
        prog = lab.prog("fexit", "mov rax, [rdi + 8]\nret", name="watch", uses=Uses(func_ip=True))
        lab.attach(prog, "bpf_fentry_test2", cookie=0x2A)
        with BpfDebugger(lab) as debugger:
            debugger.call("bpf_fentry_test2", 2, 3)
            show(debugger, "step()", debugger.step())
            show(debugger, "step()", debugger.step())
            show(debugger, "step()", debugger.step())
            show(debugger, "run_to('phase')", debugger.run_to("phase"))
            show(debugger, "run_to('program')", debugger.run_to("program"))
            print()
            for call in debugger.backtrace():
                print(f"  {call.name}")
            print()
            for slot in debugger.frame(level=1).slots:
                place = f"{debugger.frame(level=1).base}{slot.offset:+#06x}"
                print(f"  {place}  {slot.name:<38} {slot.value:#18x}  {slot.words}".rstrip())
            print()
            show(debugger, "step_out()", debugger.step_out())
            show(debugger, "back()", debugger.back())
            show(debugger, "back()", debugger.back())
            show(debugger, "back_out()", debugger.back_out())
            show(debugger, "back_over()", debugger.back_over())
            debugger.add(AtAddress("__bpf_tramp_enter"))
            show(debugger, "run_back()", debugger.run_back())
            show(debugger, "run_back()", debugger.run_back())
            debugger.set_register("rdi", 40)
            show(debugger, "run()", debugger.run())
            debugger.remove(debugger.breakpoints[0])
            show(debugger, "run()", debugger.run())


if __name__ == "__main__":
    main()
