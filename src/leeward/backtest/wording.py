"""Numbers as a person reads them, the same in the terminal, the verdicts and the report; a dash where not finite."""

import math

__all__ = ["NOT_DEFINED", "count", "number", "percent", "share", "span"]

NOT_DEFINED = "–"


def percent(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """A fraction, such as a growth or the return of one bar: 0.0123 is 1.23 %, or +1.23 % when signed."""
    return _text(100.0 * value, digits, " %", signed=signed)


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """A number without a unit, such as a Sharpe ratio."""
    return _text(value, digits, "", signed=signed)


def count(value: float) -> str:
    """A whole number, thousands apart."""
    return _with_minus(f"{value:,.0f}".replace(",", " ")) if math.isfinite(value) else NOT_DEFINED


def share(value: float) -> str:
    """A fraction that was chosen and not measured, such as a tail mass or a rate: 0.025 is 2.5 %, without padding."""
    return _with_minus(f"{100.0 * value:g} %")


def span(seconds: float) -> str:
    """A time that somebody may wait for."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def _text(value: float, digits: int, unit: str, *, signed: bool) -> str:
    if not math.isfinite(value):
        return NOT_DEFINED
    if signed and value == 0.0:
        return f"0{unit}"  # exactly nothing has neither sign nor digits
    return _with_minus(f"{value:{'+' if signed else ''}.{digits}f}{unit}")


def _with_minus(text: str) -> str:
    return text.replace("-", "−")
