"""Draws docs/tide/watermarks.svg anew: ten records by offset, with the high watermark, and by time, with Spark's.

What is drawn is worked out here by Spark's rules; tests/spark/test_docs.py has Spark do the same. Equal records give
equal bytes, so that a test can tell a stale picture.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[1] / "docs" / "tide" / "watermarks.svg"

MINUTE_S = 60
DELAY_S = 60
BATCHES = ((10, 40, 75), (50, 140, 110), (30, 170, 125))
"""The event times of the records of each micro-batch, in seconds after 12:00, in the order of their offsets."""
UNCOMMITTED = (185,)
"""What the leader has and its followers do not."""

_SHOWN_S = 240
_WIDTH, _EDGE, _PAD, _NAMES = 948, 24, 16, 130
_SLOT, _BOX, _BOX_HEIGHT = 74, 64, 36
_ROW = 62
_FONT = "Verdana, 'DejaVu Sans', Helvetica, Arial, sans-serif"
_INK, _GREY, _RULE, _PAPER = "#1c2733", "#5c6b7a", "#d5dce3", "#ffffff"
_TIDE, _SPARK, _ALARM = "#1d5c9c", "#a63c00", "#b3261e"
_COMMITTED = f'fill="#cbe2f6" stroke="{_TIDE}"'
_OPEN = 'fill="#fdf3d3" stroke="#96700f" stroke-dasharray="4 3"'
_DROPPED = f'fill="{_PAPER}" stroke="{_ALARM}" stroke-dasharray="2 3"'


class Record(NamedTuple):
    """One of the log, and what becomes of it."""

    offset: int
    event_s: int
    batch: int
    is_dropped: bool


def watermarks() -> list[int]:
    """By which each micro-batch goes, and the one after the last: the latest time seen before it, less the delay."""
    latest = accumulate((max(times) for times in BATCHES), max)
    return [0, *(seen_s - DELAY_S for seen_s in latest)]


def records() -> list[Record]:
    """Those that were read. One whose window has ended by the watermark of its micro-batch is dropped."""
    by = watermarks()
    times = [(event_s, batch) for batch, events in enumerate(BATCHES) for event_s in events]
    return [
        Record(offset, event_s, batch, (event_s // MINUTE_S + 1) * MINUTE_S <= by[batch])
        for offset, (event_s, batch) in enumerate(times)
    ]


def clock(event_s: int) -> str:
    return f"12:{event_s // 60:02}:{event_s % 60:02}"


def svg() -> str:
    """The picture as the text of one SVG file."""
    log, times = _log_panel(), _time_panel()
    tops = (94, 94 + log[1] + 20)
    height = tops[1] + times[1] + _EDGE
    title = "Two watermarks: how far the log is safe, and how far time has come"
    says = (
        "Above, a log by offset: consumers read below the high watermark. Below, the same records by event time: "
        "the event-time watermark of each micro-batch, the windows it has closed, and the record that came too late."
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="title desc"'
            f' font-family="{_FONT}" font-size="13">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(says)}</desc>',
            f'<rect width="{_WIDTH}" height="{height}" fill="#f6f8fa"/>',
            _text(_EDGE, 46, title, size=20, bold=True),
            *_legend(),
            *_panel(tops[0], *log),
            *_panel(tops[1], *times),
            "</svg>",
            "",
        ]
    )


def _legend() -> list[str]:
    drawn, x = [], _EDGE
    for look, words, width in (
        (_COMMITTED, "committed: below HW", 178),
        (_OPEN, "not committed", 132),
        (_DROPPED, "dropped: its window is closed", 236),
    ):
        drawn += [_rect(x, 60, 18, 15, look), _text(x + 26, 72, words, fill=_GREY)]
        drawn += [_strike(x, 60, 18, 15)] if look is _DROPPED else []
        x += width
    line = f'<line x1="{x}" x2="{x + 18}" y1="68" y2="68" stroke="{_SPARK}" stroke-width="3"/>'
    return [*drawn, line, _text(x + 26, 72, "event-time watermark", fill=_GREY)]


def _panel(top: int, marks: list[str], height: int) -> list[str]:
    frame = f'<rect width="{_WIDTH - 2 * _EDGE}" height="{height}" rx="8" fill="{_PAPER}" stroke="{_RULE}"/>'
    return [f'<g transform="translate({_EDGE} {top})">', frame, *marks, "</g>"]


def _log_panel() -> tuple[list[str], int]:
    """By offset: who has it decides, and when it happened does not matter."""
    read = records()
    end = len(read) + len(UNCOMMITTED)
    marks = [
        _text(_PAD, 28, "The log, by offset. A broker asks: who has a copy?", size=13, bold=True),
        _text(_NAMES - 6, 54, "offset", fill=_GREY, anchor="end"),
        _text(_PAD, 84, "leader", bold=True),
        _text(_PAD, 118, "micro-batch", fill=_GREY),
    ]
    for offset, event_s in enumerate([*(one.event_s for one in read), *UNCOMMITTED]):
        x = _slot(offset)
        look = _COMMITTED if offset < len(read) else _OPEN
        marks += [
            _text(x + _BOX // 2, 54, str(offset), fill=_GREY, anchor="middle"),
            _rect(x, 62, _BOX, _BOX_HEIGHT, look),
            _text(x + _BOX // 2, 84, clock(event_s), size=11, anchor="middle"),
        ]
    for batch in range(len(BATCHES)):
        offsets = [one.offset for one in read if one.batch == batch]
        left, right = _slot(offsets[0]), _slot(offsets[-1]) + _BOX
        marks.append(f'<path d="M{left} 104v6H{right}v-6" fill="none" stroke="{_GREY}"/>')
        marks.append(_text((left + right) // 2, 126, str(batch + 1), fill=_GREY, anchor="middle"))
    for name, offset in (("HW", len(read)), ("LEO", end)):
        x = _slot(offset) - (_SLOT - _BOX) // 2
        marks.append(f'<line x1="{x}" x2="{x}" y1="58" y2="132" stroke="{_TIDE}" stroke-width="2"/>')
        marks.append(_text(x, 148, f"{name} {offset}", fill=_TIDE, bold=True, anchor="middle"))
    return marks, 164


def _time_panel() -> tuple[list[str], int]:
    """By event time: when it happened decides, and where it lies does not matter."""
    top = 66
    bottom = top + _ROW * (len(BATCHES) + 1)
    marks = [
        _text(_PAD, 28, "The same records, by event time. A query asks: can anything older still come?", bold=True)
    ]
    marks += _windows(top, bottom)
    for batch in range(len(BATCHES) + 1):
        y = top + batch * _ROW
        name = f"micro-batch {batch + 1}" if batch < len(BATCHES) else "the next one"
        marks += [_text(_PAD, y + 36, name, fill=_GREY)]
        marks += [f'<line x1="{_PAD}" x2="{_at(_SHOWN_S)}" y1="{y + _ROW}" y2="{y + _ROW}" stroke="{_RULE}"/>']
    marks += _watermark_line(top)
    for one in records():
        marks += _record(one, top + one.batch * _ROW)
    marks += _results(bottom)
    return marks, bottom + 62


def _windows(top: int, bottom: int) -> list[str]:
    """A window is closed from the micro-batch on whose watermark has reached its end."""
    marks = []
    for start_s in range(0, _SHOWN_S, MINUTE_S):
        left, right = _at(start_s), _at(start_s + MINUTE_S)
        for row, by_s in enumerate(watermarks()):
            if by_s >= start_s + MINUTE_S:
                y = top + row * _ROW
                marks.append(f'<rect x="{left}" y="{y}" width="{right - left}" height="{bottom - y}" fill="#e9edf1"/>')
                marks.append(_text((left + right) // 2, bottom - _ROW // 2 + 4, "closed", fill=_GREY, anchor="middle"))
                break
    for edge_s in range(0, _SHOWN_S + 1, MINUTE_S):
        x = _at(edge_s)
        marks.append(f'<line x1="{x}" x2="{x}" y1="{top - 6}" y2="{bottom}" stroke="{_RULE}"/>')
        marks.append(_text(x, top - 12, clock(edge_s)[:5], fill=_GREY, anchor="middle"))
    return marks


def _watermark_line(top: int) -> list[str]:
    """From the second micro-batch on, a step for each."""
    by = watermarks()
    path = f"M{_at(by[1])} {top + _ROW}v{_ROW}"
    marks = []
    for row, by_s in enumerate(by[1:], 1):
        if row > 1:
            path += f"H{_at(by_s)}v{_ROW}"
        marks.append(_text(_at(by_s) + 6, top + row * _ROW + 14, clock(by_s), size=11, fill=_SPARK, bold=True))
    return [f'<path d="{path}" fill="none" stroke="{_SPARK}" stroke-width="3"/>', *marks]


def _record(one: Record, top: int) -> list[str]:
    x, y, size = _at(one.event_s) - 14, top + 24, 28
    look = _DROPPED if one.is_dropped else _COMMITTED
    marks = [_rect(x, y, size, size, look), _text(x + 14, y + 18, str(one.offset), anchor="middle")]
    return [*marks, _strike(x, y, size, size)] if one.is_dropped else marks


def _results(y: int) -> list[str]:
    """What the query says of each window after the last micro-batch."""
    final_s = watermarks()[-1]
    marks = [_text(_PAD, y + 26, "count", bold=True)]
    for start_s in range(0, _SHOWN_S, MINUTE_S):
        counted = sum(1 for one in records() if not one.is_dropped and one.event_s // MINUTE_S * MINUTE_S == start_s)
        state = "final" if start_s + MINUTE_S <= final_s else "may grow"
        x = (_at(start_s) + _at(start_s + MINUTE_S)) // 2
        marks.append(_text(x, y + 26, str(counted), size=16, bold=True, anchor="middle"))
        marks.append(_text(x, y + 46, state, fill=_GREY, anchor="middle"))
    return marks


def _slot(offset: int) -> int:
    return _NAMES + offset * _SLOT


def _at(event_s: int) -> int:
    return _NAMES + event_s * (_WIDTH - 2 * _EDGE - _NAMES - 2 * _PAD) // _SHOWN_S


def _text(x: int, y: int, words: str, *, size: int = 12, fill: str = _INK, bold: bool = False, anchor: str = "") -> str:
    style = (' font-weight="bold"' if bold else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{style}>{escape(words)}</text>'


def _rect(x: int, y: int, width: int, height: int, look: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" {look} stroke-width="1.2"/>'


def _strike(x: int, y: int, width: int, height: int) -> str:
    return f'<path d="M{x} {y + height}l{width} -{height}" stroke="{_ALARM}" stroke-width="1.5"/>'


def main() -> int:
    TARGET.write_text(svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
