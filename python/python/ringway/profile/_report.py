"""What people and programs look at: a trace, a time line, a page."""

import html as markup
import json
import time
from collections.abc import Sequence

from ringway.profile._event import Event
from ringway.profile._stats import CollectiveStats, Stats, Step

_COLORS = {
    "forward": "#4c78a8",
    "backward": "#72b7b2",
    "update": "#9d755d",
    "wait": "#e45756",
    "communication": "#f2a33a",
    "exposed": "#e45756",
    "other": "#c7c7c7",
}
_INNER = ("update", "wait")
"""Kinds that happen within a forward or backward pass."""


def lanes(events: Sequence[Event]) -> list[tuple[Event, int]]:
    """Communication, each in the first lane where nothing else is under way at that time."""
    ends: list[float] = []
    placed = []
    for event in sorted((it for it in events if it.kind == "communication"), key=lambda it: it.begin):
        lane = next((lane for lane, end in enumerate(ends) if end <= event.begin), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = event.end
        placed.append((event, lane))
    return placed


def trace(events: Sequence[Event], rank: int) -> str:
    """The Trace Event Format of Chrome and Perfetto. Its clock is the host's."""
    offset = time.time() - time.perf_counter()

    def complete(event: Event, thread: int) -> dict[str, object]:
        begin = round((event.begin + offset) * 1e6, 3)
        duration = round((event.end - event.begin) * 1e6, 3)
        args = {"bytes": event.size} if event.size else {}
        common = {"name": event.name, "cat": event.kind, "ph": "X", "pid": rank, "tid": thread}
        return {**common, "ts": begin, "dur": duration, "args": args}

    placed = lanes(events)
    rows = {0: "computation", **{lane + 1: f"communication {lane}" for _, lane in placed}}
    named: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}},
        *({"name": "thread_name", "ph": "M", "pid": rank, "tid": t, "args": {"name": n}} for t, n in rows.items()),
    ]
    computation = [complete(event, 0) for event in events if event.kind != "communication"]
    return json.dumps({"traceEvents": [*named, *computation, *(complete(event, lane + 1) for event, lane in placed)]})


def _head(width: int, height: int) -> str:
    font = 'font-family="sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>'


def timeline(events: Sequence[Event], width: int = 1000) -> str:
    """An SVG with computation above and communication below."""
    placed = lanes(events)
    height = 76 + 14 * (1 + max((lane for _, lane in placed), default=0))
    begin, end = min((it.begin for it in events), default=0.0), max((it.end for it in events), default=1.0)
    scale = (width - 20) / (end - begin)

    def box(event: Event, y: int, tall: int) -> str:
        x, wide = 10 + (event.begin - begin) * scale, max((event.end - event.begin) * scale, 0.5)
        size = f", {event.size} bytes" if event.size else ""
        what = f"{event.name}, {(event.end - event.begin) * 1e3:.2f} ms{size}"
        place = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall}"'
        return f'<rect {place} fill="{_COLORS[event.kind]}"><title>{markup.escape(what)}</title></rect>'

    computation = sorted((it for it in events if it.kind != "communication"), key=lambda it: it.kind in _INNER)
    boxes = [*(box(it, 30, 26) for it in computation), *(box(it, 66 + 14 * lane, 11) for it, lane in placed)]
    kinds = ("forward", "backward", "update", "wait", "communication")
    legend = "".join(
        f'<rect x="{10 + 130 * at}" y="8" width="11" height="11" fill="{_COLORS[kind]}"/>'
        f'<text x="{25 + 130 * at}" y="18">{kind}</text>'
        for at, kind in enumerate(kinds)
    )
    span = f'<text x="{width - 10}" y="18" text-anchor="end">{(end - begin) * 1e3:.0f} ms</text>'
    head = _head(width, height)
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, background, legend, span, *boxes, "</svg>\n"])


def _bars(steps: Sequence[Step], width: int = 1000, height: int = 220) -> str:
    """An SVG with a stacked bar for each step."""
    most = max((step.seconds for step in steps), default=1.0)
    wide = (width - 20) / max(len(steps), 1)
    parts = []
    for at, step in enumerate(steps):
        y = height - 5.0
        for kind in ("forward", "backward", "update", "exposed", "other"):
            seconds = getattr(step, kind)
            tall = seconds / most * (height - 30)
            y -= tall
            place = f'x="{10 + at * wide:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}"'
            title = f"<title>step {step.number}: {kind} {seconds * 1e3:.2f} ms</title>"
            parts.append(f'<rect {place} fill="{_COLORS[kind]}">{title}</rect>')
    scale = f'<text x="10" y="15">up to {most * 1e3:.1f} ms a step</text>'
    head = _head(width, height)
    return "\n".join([head, scale, *parts, "</svg>"])


def _row(stats: CollectiveStats) -> str:
    latency, bandwidth = stats.latency, stats.bandwidth
    cells = [
        stats.collective,
        f"{stats.size:,}",
        f"{stats.calls:,}",
        *(f"{it * 1e6:,.0f}" for it in (latency.p50, latency.p90, latency.p99)),
        *(f"{it / 1e9:.3f}" for it in (bandwidth.p50, bandwidth.p90, bandwidth.p99)),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def html(stats: Stats, steps: Sequence[Step], events: Sequence[Event]) -> str:
    """A page that needs nothing from elsewhere."""
    shares = "".join(
        f"<tr><td>{name}</td><td>{getattr(stats, name) * 1e3:.2f}</td></tr>"
        for name in ("step", "forward", "backward", "update", "exposed", "hidden", "encode", "other")
    )
    waits = "".join(
        f"<tr><td>{rank}</td><td>{wait * 1e3:.2f}</td><td>{often}</td></tr>"
        for rank, (wait, often) in enumerate(zip(stats.waits, stats.slowest_steps, strict=True))
    )
    head = "<tr><th>rank<th>waits, ms a step<th>steps in which others wait for it</tr>"
    ranks = f"<h2>Who waits for whom</h2><table>{head}{waits}</table>" if waits else ""
    heads = ["collective", "bytes from", "calls", "P50 &micro;s", "P90", "P99", "P50 GB/s", "P90", "P99"]
    table = "".join(f"<th>{head}" for head in heads)
    style = "body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}svg{max-width:100%}"
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Ringway profile, rank {stats.rank}</title><style>{style}</style>
<h1>Rank {stats.rank}, {stats.steps:,} steps</h1>
<p>{markup.escape(stats.line())}</p>
<table><tr><th>mean<th>ms</tr>{shares}</table>
<h2>Steps</h2>
{_bars(steps)}
<h2>The last steps</h2>
{timeline(events)}
{ranks}
<h2>Calls</h2>
<table><tr>{table}</tr>{"".join(map(_row, stats.collectives))}</table>
</html>
"""
