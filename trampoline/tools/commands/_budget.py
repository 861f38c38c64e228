"""How long a command may take, as its user says it."""

import argparse


def seconds(text: str) -> float:
    """``60s``, ``2m``, ``1h``, or a number of seconds; more than none. ArgumentTypeError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 60s, 2m")
    return value
