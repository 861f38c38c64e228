"""Drawings that take the page's colours."""

from dataclasses import dataclass, field
from html import escape

LINE, FAINT, TEXT, MUTED, BOX = (
    "var(--color-foreground-primary, #000)",
    "var(--color-foreground-border, #888)",
    "var(--color-foreground-primary, #000)",
    "var(--color-foreground-secondary, #555)",
    "var(--color-background-hover, #eee)",
)
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


@dataclass(slots=True)
class Drawing:
    """Shapes on a plane; lengths in pixels at the size at which the text is 12 pixels high."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, faint: bool = False, arrow: bool = False) -> None:
        """A line, with an arrow's head at its end perhaps."""
        style = f'stroke="{FAINT}" stroke-dasharray="3 3"' if faint else f'stroke="{LINE}"'
        self.shapes.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" {style}/>')
        if arrow:
            back = 6 if x2 < x1 else -6
            self.shapes.append(
                f'<path d="M{x2:.0f} {y2:.0f} l{back} -3.5 l0 7 z" fill="{LINE}"/>'
            )

    def box(self, x: float, y: float, width: float, height: float, *, filled: bool = True) -> None:
        """A rectangle."""
        fill = BOX if filled else "none"
        self.shapes.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" fill="{fill}" stroke="{LINE}"/>'
        )

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", muted: bool = False) -> None:
        """Words whose baseline is at y."""
        colour = MUTED if muted else TEXT
        where = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
        self.shapes.append(f'<text {where} fill="{colour}">{escape(text)}</text>')

    def svg(self) -> str:
        """The drawing as an SVG element."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" font-family="{_FONT}" font-size="12"'
            f' style="max-width: {self.width}px; width: 100%; height: auto">'
            f"<title>{escape(self.title)}</title>{''.join(self.shapes)}</svg>"
        )
