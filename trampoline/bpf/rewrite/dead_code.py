"""Removal of unreachable code, and of jumps to the next instruction."""


from trampoline.bpf.isa.insn import GOTO, MAY_GOTO, Cls, Insn, Jmp
from trampoline.bpf.rewrite.nodes import InsnNode, NodeList


def hard_wire_branches(code: NodeList) -> None:
    """Replace conditions that have one never-taken side by plain jumps (``opt_hard_wire_dead_code_branches``)."""
    after = dict(zip(map(id, code.nodes), [*code.nodes[1:], None], strict=True))
    for node in code.nodes:
        if not _is_conditional(node.insn) or node.target is None:
            continue
        next_node = after[id(node)]
        if next_node is not None and not _seen(next_node):
            node.insn = Insn(GOTO)
        elif not _seen(node.target):
            node.insn, node.target = Insn(GOTO), next_node


def _is_conditional(insn: Insn) -> bool:
    return insn.cls in (Cls.JMP, Cls.JMP32) and insn.op not in (Jmp.JA, Jmp.CALL, Jmp.EXIT, Jmp.JCOND, Jmp.TAIL_CALL)


def _seen(node: InsnNode) -> bool:
    return node.facts is None or node.facts.seen


def remove_dead_code(code: NodeList) -> None:
    """Remove unreachable code (``opt_remove_dead_code``)."""
    code.expand(lambda node: None if _seen(node) else ())


def remove_nops(code: NodeList) -> None:
    """Remove jumps to the next instruction (``opt_remove_nops``).

    A jump stays if only another such jump separated it from its target: the kernel checks each once, from the start. A
    may_goto that would have jumped over the removed code is checked again.
    """
    nodes = code.nodes
    place_of = {id(node): place for place, node in enumerate(nodes)}
    gone: set[int] = set()

    def is_nop(place: int) -> bool:
        node = nodes[place]
        if node.target is None or node.insn.code not in (GOTO, MAY_GOTO):
            return False
        target = place_of[id(node.target)]
        return target > place and all(id(between) in gone for between in nodes[place + 1 : target])

    place = 0
    while place < len(nodes):
        if id(nodes[place]) not in gone and is_nop(place):
            gone.add(id(nodes[place]))
            if nodes[place].insn.code == MAY_GOTO:
                place -= 1
                while place >= 0 and id(nodes[place]) in gone:
                    place -= 1
                place = max(place, 0)
                continue
        place += 1
    if gone:
        code.expand(lambda node: () if id(node) in gone else None)
