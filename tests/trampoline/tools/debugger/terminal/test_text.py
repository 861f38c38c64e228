from hypothesis import given
from hypothesis import strategies as st

from trampoline.tools.debugger.terminal.styled_text import CUT, Role, Span, fitted, line, plain, width

spans = st.lists(st.builds(Span, st.text("ab ", max_size=8), st.sampled_from(Role)), max_size=6).map(tuple)


def test_empty_pieces_are_left_out():
    assert line("a", "", Span("", Role.NAME), Span("b", Role.NAME)) == (Span("a"), Span("b", Role.NAME))


@given(spans, st.integers(0, 50))
def test_a_fitted_line_is_the_line_or_says_that_it_was_cut(whole, columns):
    cut = fitted(whole, columns)
    assert width(cut) <= columns
    if len(plain(whole)) <= columns:
        assert plain(cut) == plain(whole)
    elif columns:
        assert plain(cut) == "".join(span.text for span in whole)[: columns - 1] + CUT
