"""Plot of cost against the number of functions. Only this module uses matplotlib, which it imports to draw."""

from collections.abc import Callable, Sequence
from io import BytesIO

from trampoline.extras import extra
from trampoline.tools.scale.mass_attach import Cost, MassAttach
from trampoline.tools.scale.scale import Scale

_PANELS: tuple[tuple[str, Callable[[Cost, int], float]], ...] = (
    ("wall time (s)", lambda cost, functions: cost.wall_seconds),
    ("virtual time (s)", lambda cost, functions: cost.virtual_seconds),
    ("text writes", lambda cost, functions: cost.text_writes),
    ("rounds of IPIs", lambda cost, functions: cost.ipis),
    ("grace periods", lambda cost, functions: cost.grace_periods),
    ("memory (bytes per function)", lambda cost, functions: cost.memory_bytes / functions),
)
_MARKERS = "os^Dv<>P"


def svg(scale: Scale) -> bytes:
    """A panel for each kind of cost, a line for each design: attaching solid, detaching dashed."""
    with extra("plot", "the picture"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    # Equal points make equal files: this salt determines element ids, and letters are not converted to paths.
    with rc_context({"svg.hashsalt": "tramplab", "svg.fonttype": "none"}):
        figure = Figure(figsize=(12, 7), layout="constrained")
        axes = figure.subplots(2, 3).flat
        designs = list(dict.fromkeys(point.design for point in scale.points))
        for axis, (title, value) in zip(axes, _PANELS, strict=True):
            for number, design in enumerate(designs):
                points = [point for point in scale.points if point.design == design]
                for operation in ("attach", "detach"):
                    if title.startswith("memory") and operation == "detach":
                        continue  # detaching frees what attaching allocated
                    axis.plot(
                        [point.functions for point in points],
                        _values(points, operation, value),
                        color=f"C{number}",
                        marker=_MARKERS[number % len(_MARKERS)],
                        markersize=5,
                        alpha=0.8,
                        linestyle="-" if operation == "attach" else "--",
                        label=f"{design}, {operation}",
                    )
            axis.set(title=title, xlabel="functions", xscale="log")
            # Some counts are 0, which a logarithmic scale cannot show.
            axis.set_yscale("symlog", linthresh=1e-4 if title.endswith("(s)") else 1)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        columns = max(len(designs), 2)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small", handlelength=4)
        figure.suptitle(f"one program on many functions, kernel {scale.flavour}")
        out = BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _values(points: Sequence[MassAttach], operation: str, value: Callable[[Cost, int], float]) -> list[float]:
    return [value(getattr(point, operation), max(point.functions, 1)) for point in points]
