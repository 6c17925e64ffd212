"""The report as one HTML file that needs nothing else: style, script and charts are in it."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from triform.analysis.compare.charts import DARK, LIGHT, Charts
from triform.analysis.compare.columns import columns
from triform.analysis.compare.comparison import Comparison
from triform.analysis.compare.document import tuning_table
from triform.analysis.compare.samples import FIELDS, aligned
from triform.analysis.compare.svg import svg
from triform.analysis.compare.variants import short

ACROSS = 8
"""Variants whose outputs are shown side by side, and values of a key that still fit across."""
LONG = 20
"""Rows beyond which a table scrolls by itself."""


def page(found: Comparison, drawn: Charts) -> str:
    """The whole page. Every text of a run is escaped: it may hold anything."""
    sections = [
        f"<h1>{escape(found.title)}</h1>",
        "".join(f"<p>{escape(note)}</p>" for note in found.notes[:1]),
        _list(found.notes[1:]),
        _table(found, drawn),
        _tried(found, drawn),
        _failed(found),
        _search(found, drawn),
        _curves(drawn),
        _section("Figure against FLOPs", _grid([svg(chart) for chart in drawn.fronts])),
        _differences(found),
        _samples(found),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(found.title)}</title>\n<style>\n{_style()}</style></head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<script>\n{_part('page.js')}</script></body></html>\n"
    )


def _style() -> str:
    style = _part("page.css")
    for mark, hues in (("/*LIGHT*/", LIGHT), ("/*DARK*/", DARK)):
        pale = "#b0b0b0" if hues is LIGHT else "#6a6a6a"
        style = style.replace(mark, " ".join(f"--c{i}: {hue};" for i, hue in enumerate(hues)) + f" --grey: {pale};")
    return (
        style
        + "".join(f".c{i} {{ --hue: var(--c{i}); }}\n" for i in range(len(LIGHT)))
        + ".grey { --hue: var(--grey); }\n"
    )


def _part(name: str) -> str:
    return files("triform.analysis.compare").joinpath(name).read_text(encoding="utf-8")


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{body}</section>" if body else ""


def _list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _table(found: Comparison, drawn: Charts) -> str:
    if not found.rows:
        return ""
    table = columns(found)
    heads = "".join(
        f'<th scope="col"{_text(column.is_text)} title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column in table
    )
    body = []
    for i, row in enumerate(found.rows):
        cells = []
        for j, column in enumerate(table):
            key = column.keys[i]
            inner = escape(column.cells[i])
            if not j:
                inner = f'<span class="chip {_hue(drawn, row.variant.label)}"></span>{inner}'
            judged = row.verdict if column.heading in ("verdict", "difference") else ""
            kind = f"{'text ' if column.is_text else ''}{judged}"
            cells.append(
                f'<td class="{kind.strip()}" data-key="{escape("" if key is None else str(key))}">{inner}</td>'
            )
        body.append(f"<tr{' class=baseline' if row.is_baseline else ''}>{''.join(cells)}</tr>")
    long = " long" if len(found.rows) > LONG else ""
    table_head = f'<table class="sortable"><thead><tr>{heads}</tr></thead>'
    return f'<div class="wide{long}">{table_head}<tbody>{"".join(body)}</tbody></table></div>'


def _text(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _hue(drawn: Charts, label: str) -> str:
    return f"c{drawn.colours[label]}" if label in drawn.colours else "grey"


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML."""
    heads = "".join(f'<th scope="col" class="text">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td class=text>{cell}</td>' for cell in row)}</tr>" for row in rows)
    long = " long" if len(rows) > LONG else ""
    return f'<div class="wide{long}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _tried(found: Comparison, drawn: Charts) -> str:
    tables = []
    for tuning in found.tunings:
        headings, rows = tuning_table(tuning)
        tables.append(_rows(headings, [[escape(cell) for cell in row] for row in rows]))
    return _section("Trials before the comparison", "".join(tables) + _grid([svg(chart) for chart in drawn.tunings]))


def _failed(found: Comparison) -> str:
    rows = [
        (
            escape(item.label),
            escape(item.entry.status),
            f"<pre>{escape(item.entry.error or '')}</pre>",
            f"<pre>{escape(item.command)}</pre>",
            f"<pre>{escape(item.entry.name)}</pre>",
        )
        for item in found.unfinished
    ]
    return (
        _section("Without a result", _rows(("variant", "status", "error", "repeat it", "folder"), rows)) if rows else ""
    )


def _legend(drawn: Charts) -> str:
    chips = [
        f'<span><span class="chip c{colour}"></span>{escape(label)}</span>' for label, colour in drawn.colours.items()
    ]
    every = [one for by in drawn.curves.values() for chart in by.values() for one in chart.series]
    if any(one.colour is None for one in every):
        chips.append('<span><span class="chip grey"></span>others</span>')
    return f'<div class="legend">{"".join(chips)}</div>'


def _curves(drawn: Charts) -> str:
    if not drawn.curves:
        return ""
    along = list(dict.fromkeys(name for by in drawn.curves.values() for name in by))
    tabs = "".join(
        f'<label><input type="radio" name="along" value="{name}"{" checked" if not i else ""}>{name}</label>'
        for i, name in enumerate(along)
    )
    parts = "".join(
        f'<div data-along="{name}">{_grid([svg(by[name]) for by in drawn.curves.values() if name in by])}</div>'
        for name in along
    )
    body = f'{_legend(drawn)}<div class="along"><div class="tabs">{tabs}</div>{parts}</div>'
    return _section("While they trained", body)


def _search(found: Comparison, drawn: Charts) -> str:
    if not found.is_search or found.importance is None:
        return ""
    names = short(found.varied)
    shares = found.importance.shares
    bars = "".join(
        f'<span>{escape(names[key])}</span><span style="width:{100 * share / max(shares.values()):.1f}%"></span>'
        f"<span>{100 * share:.0f} %</span>"
        for key, share in shares.items()
    )
    missing = f'<p class="quiet">No importances: {escape(found.importance.missing)}.</p>' if not shares else ""
    what = (
        '<p class="quiet">Share of the variance that each key explains by itself (functional ANOVA).</p>'
        if shares
        else ""
    )
    return _section(
        "Hyperparameters", f'{what}<div class="bar">{bars}</div>{missing}{_grid([svg(c) for c in drawn.slices])}'
    )


def _differences(found: Comparison) -> str:
    if not found.differing:
        return ""
    labels = [row.variant.label for row in found.rows]
    if len(labels) <= ACROSS or len(labels) < len(found.differing):
        rows = [[escape(key), *(escape(value) for value in values)] for key, values in found.differing.items()]
        table = _rows(("key", *labels), rows)
    else:
        rows = [
            [escape(label), *(escape(values[i]) for values in found.differing.values())]
            for i, label in enumerate(labels)
        ]
        table = _rows(("variant", *found.differing), rows)
    return _section("What differs in the configuration", table)


def _samples(found: Comparison) -> str:
    kept = dict(list(found.samples.items())[:ACROSS])
    if not kept:
        return ""
    given = aligned(kept)
    if given:
        rows = []
        for i, text in enumerate(given):
            expected = next((samples[i].expected for samples in kept.values()), "")
            cells = [
                f'<pre class="{ {"right": "better", "wrong": "worse"}.get(samples[i].verdict, "") }">'
                f"{escape(samples[i].written)}</pre>"
                for samples in kept.values()
            ]
            rows.append([f"<pre>{escape(text)}</pre>", *cells, f"<pre>{escape(expected)}</pre>"])
        return _section("Outputs of each variant's best run", _rows(("given", *kept, "expected"), rows))
    depth = max(len(samples) for samples in kept.values())
    rows = [
        ["<pre>" + _block(samples[i]) + "</pre>" if i < len(samples) else "" for samples in kept.values()]
        for i in range(depth)
    ]
    return _section("Outputs of each variant's best run", _rows(tuple(kept), rows))


def _block(sample: object) -> str:
    lines = [f"{name}: {getattr(sample, name)}" for name in FIELDS if getattr(sample, name)]
    return escape("\n".join(lines))
