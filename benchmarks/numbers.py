"""How figures are written."""


def rounded(value: float) -> str:
    """Returns three significant digits, with thousands separated."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
