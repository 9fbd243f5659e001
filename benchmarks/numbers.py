"""Formatting of figures."""


def rounded(value: float) -> str:
    """Returns `value` with three significant digits and thousands separators."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
