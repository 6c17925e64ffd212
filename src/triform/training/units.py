"""Figures as people read them. Imports nothing: what shows a sweep need not wait for Lightning."""


def rate(per_second: float) -> str:
    """Three significant digits with a unit: `950`, `12.3k`, `1.25M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= limit:
            value = per_second / limit
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    return f"{per_second:.0f}"


def duration(seconds: float) -> str:
    """`0:41`, `12:05`, `3:07:09`, `2d 03:07:09`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
