"""A whole story as one SVG: its steps as numbered panels, to be read from left to right and down.

    Path("loss.svg").write_text(svg(strip), encoding="utf-8")

Equal strips give equal bytes, so that a test can tell a stale picture in the docs. Fonts are the reader's, and their
widths are not known here: lines are broken by a generous estimate, and words that follow each other share one text
element, so that a wider font moves them and never lays them on top of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.sax.saxutils import escape

from tidelog.lab.frames import Frame, Role, Strip
from tidelog.lab.layout import Box, Columns, Fact, Look, Marker, Row, columns, frame_facts, legend, rows
from tidelog.lab.rulebook import sentences

_FONT = "Verdana, 'DejaVu Sans', Helvetica, Arial, sans-serif"
_EDGE = 24
_GAP = 20
_PAD = 16
_NAMES = 130  # left of the boxes
_BOX, _SLOT, _BOX_HEIGHT = 50, 58, 36
_BEHIND = 64  # right of the boxes, for the marks at the log end
_SIZE, _LINE = 12, 17
_MAX_COLUMNS = 12
_MIN_PANEL = 440
_PAGE = 1000
_HEADING = 84

_INK, _GREY, _RULE = "#1c2733", "#5c6b7a", "#d5dce3"
_CHANGED, _ALARM = "#a63c00", "#b3261e"


@dataclass(frozen=True, slots=True)
class _Paint:
    fill: str
    stroke: str
    dash: str = ""


_PAINT = {
    Look.SOLID: _Paint("#cbe2f6", "#1d5c9c"),
    Look.DASHED: _Paint("#fdf3d3", "#96700f", "4 3"),
    Look.GONE: _Paint("#ffffff", _ALARM, "2 3"),
}
_DIFFERS = _Paint("#ecd9f5", "#76279e")
_BADGE = {
    Role.LEADER: "#1e6b3c",
    Role.FOLLOWER: "#4a5b6c",
    Role.FROZEN: "#1f7f96",
    Role.DEAD: "#9aa5b1",
    Role.MEMBER: "#4a5b6c",
    Role.OUTSIDE: "#9aa5b1",
}


@dataclass(frozen=True, slots=True)
class _Span:
    """A word of a text line with its colour."""

    text: str
    fill: str = _INK
    bold: bool = False


def svg(strip: Strip) -> str:
    """The picture as the text of one SVG file."""
    shown = columns(strip.frames).limited(_MAX_COLUMNS)
    panel = max(_MIN_PANEL, 2 * _PAD + _NAMES + shown.count * _SLOT + _BEHIND)
    across = min(len(strip.frames), max(1, (_PAGE - 2 * _EDGE + _GAP) // (panel + _GAP)))
    panels = [_Panel(strip, index, shown, panel) for index in range(len(strip.frames))]
    width = 2 * _EDGE + max(across, 2 if panel < _PAGE // 2 else 1) * (panel + _GAP) - _GAP
    meanings, legend_height = _legend(strip, width)
    body = []
    top = _HEADING + legend_height
    for first in range(0, len(panels), across):
        line = panels[first : first + across]
        height = max(one.height for one in line)
        body += [one.drawn(_EDGE + place * (panel + _GAP), top, height) for place, one in enumerate(line)]
        top += height + _GAP
    return "\n".join([*_head(strip, width, top - _GAP + _EDGE), *meanings, *body, "</svg>", ""])


def _head(strip: Strip, width: int, height: int) -> list[str]:
    steps = " ".join(f"{number}. {frame.says}" for number, frame in enumerate(strip.frames, 1))
    variant = f" ({strip.variant})" if strip.variant else ""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-labelledby="title desc" font-family="{_FONT}" font-size="13">',
        f'<title id="title">{escape(strip.title + variant)}</title>',
        f'<desc id="desc">{escape(steps)}</desc>',
        f'<rect width="{width}" height="{height}" fill="#f6f8fa"/>',
        f'<text x="{_EDGE}" y="46" font-size="22" font-weight="bold" fill="{_INK}">{escape(strip.title)}'
        f'<tspan font-size="14" font-weight="normal" fill="{_GREY}" dx="12">{escape(strip.variant)}</tspan></text>',
    ]


def _legend(strip: Strip, width: int) -> tuple[list[str], int]:
    """Small boxes and what they mean, and how much height they take."""
    said = legend(strip)
    meanings = (
        *((_PAINT[look], words) for look, words in said.looks.items()),
        (_DIFFERS, f"≠ {said.differs}"),
        (None, "changed in this step"),
    )
    drawn, x, y = [], _EDGE, _HEADING - 14
    for paint, words in meanings:
        needed = 26 + round(_width(words, _SIZE)) + 16
        if x > _EDGE and x + needed > width - _EDGE:
            x, y = _EDGE, y + 24
        if paint is None:
            drawn.append(f'<text x="{x}" y="{y}" font-weight="bold" fill="{_CHANGED}">Aa</text>')
        else:
            drawn.append(_rect(x, y - 12, 18, 15, paint))
            drawn += [_strike(x, y - 12, 18, 15)] if paint is _PAINT[Look.GONE] else []
        drawn.append(f'<text x="{x + 26}" y="{y}" font-size="12" fill="{_GREY}">{words}</text>')
        x += needed
    return drawn, y - _HEADING + 32


class _Panel:
    """One step: drawn once at its own origin, and moved to its place when the heights of its neighbours are known."""

    def __init__(self, strip: Strip, index: int, shown: Columns, width: int) -> None:
        self._shown = shown
        self._width = width
        self._marks: list[str] = []
        self._y = 0
        frame, before = strip.frames[index], strip.before(index)
        self._heading(index + 1, frame)
        self._lines([_fact(fact) for fact in frame_facts(before, frame)], _PAD)
        for note in frame.notes:
            self._lines([[_Span(word)] for word in note.split()], _PAD, gap=1)
        self._axis()
        for row in rows(before, frame):
            self._row(row)
        self.height = self._y + 4

    def drawn(self, x: int, y: int, height: int) -> str:
        frame = f'<rect width="{self._width}" height="{height}" rx="8" fill="#ffffff" stroke="{_RULE}"/>'
        return "\n".join([f'<g transform="translate({x} {y})">', frame, *self._marks, "</g>"])

    def _heading(self, number: int, frame: Frame) -> None:
        self._marks.append(f'<circle cx="{_PAD + 13}" cy="27" r="13" fill="{_INK}"/>')
        self._marks.append(_text(_PAD + 13, 32, [_Span(str(number), "#ffffff", True)], anchor="middle"))
        self._y = 14
        words = [[_Span(word, bold=True)] for word in frame.says.split()]
        self._lines(words, _PAD + 36, gap=1)
        for sentence in sentences(frame.rule):
            self._lines([[_Span(word, _GREY)] for word in sentence.split()], _PAD + 36, gap=1)
        self._y = max(self._y, 42) + 4

    def _lines(self, pieces: Iterable[Sequence[_Span]], x: int, gap: int = 3) -> None:
        """The pieces side by side, on as many lines as the width asks for."""
        for line in _flowed(pieces, self._width - x - _PAD, gap):
            self._y += _LINE
            self._marks.append(_text(x, self._y, line))

    def _axis(self) -> None:
        self._y += 12
        self._marks.append(
            f'<line x1="{_PAD}" x2="{self._width - _PAD}" y1="{self._y}" y2="{self._y}" stroke="{_RULE}"/>'
        )
        self._y += 18
        left = f"… {self._shown.hidden} more" if self._shown.hidden else self._shown.axis
        self._marks.append(_text(_PAD + _NAMES - 12, self._y, [_Span(left, _GREY)], size=11, anchor="end"))
        for number in self._shown.numbers:
            middle = self._edge(number) + _BOX // 2
            self._marks.append(_text(middle, self._y, [_Span(str(number), _GREY)], size=11, anchor="middle"))
        self._y += 6

    def _edge(self, number: int) -> int:
        return _PAD + _NAMES + (number - self._shown.first) * _SLOT

    def _row(self, row: Row) -> None:
        self._name(row)
        self._marks.append(f'<g opacity="{0.6 if row.role is Role.DEAD else 1}">')
        for number in self._shown.numbers:
            if box := row.boxes.get(number):
                self._marks += _box(box, self._edge(number), self._y)
        self._marks.append("</g>")
        self._y += _BOX_HEIGHT
        self._markers(row.markers)
        self._lines([_fact(fact) for fact in row.facts], _PAD)
        self._y += 16

    def _name(self, row: Row) -> None:
        role, _, term = row.words.partition(", ")
        style = _Span(role, _CHANGED if row.was else _INK, bool(row.was) or row.role is Role.LEADER)
        below = [term, f"was {row.was}" if row.was else ""]
        badge = f'x="{_PAD}" y="{self._y + 3}" width="30" height="30" rx="6"'
        self._marks.append(f'<rect {badge} fill="{_BADGE[row.role]}"/>')
        self._marks.append(_text(_PAD + 15, self._y + 23, [_Span(row.name, "#ffffff", True)], anchor="middle"))
        lines = [style, *(_Span(words, _GREY) for words in below if words)]
        top = self._y + 29 - 7 * len(lines)
        for place, line in enumerate(lines):
            self._marks.append(_text(_PAD + 38, top + 14 * place, [line], size=11 if place else _SIZE))

    def _markers(self, marks: Iterable[Marker]) -> None:
        """A mark at the left edge of its box; where two would touch, the second goes one line down."""
        ends: list[float] = []
        for mark in marks:
            if not self._shown.first <= mark.offset <= self._shown.first + self._shown.count:
                continue
            x = self._edge(mark.offset) - (_SLOT - _BOX) // 2
            level = next((level for level, end in enumerate(ends) if end < x), len(ends))
            ends[level : level + 1] = [x + 10 + _width(mark.text, 11)]
            top = self._y + 3 + level * 14
            fill = _CHANGED if mark.changed else _INK
            self._marks.append(f'<path d="M{x} {top}l5 9h-10z" fill="{fill}"/>')
            self._marks.append(_text(x + 8, top + 10, [_Span(mark.text, fill, mark.changed)], size=11))
        self._y += 4 + 14 * len(ends)


def _box(box: Box, x: int, y: int) -> list[str]:
    paint = _DIFFERS if box.differs else _PAINT[box.look]
    gone = box.look is Look.GONE
    ink = _ALARM if gone else _INK
    middle = x + _BOX // 2
    word, number = box.term
    label = ("≠ " if box.differs else "") + _shortened(box.label, 3 if box.differs else 5)
    drawn = [
        _rect(x, y, _BOX, _BOX_HEIGHT, paint, 2.5 if box.new else 1.2),
        _text(middle, y + 17, [_Span(label, ink, box.new)], anchor="middle"),
        _text(middle, y + 30, [_Span(f"{word} {number}", _ALARM if gone else _GREY)], size=9, anchor="middle"),
    ]
    return [*drawn, _strike(x, y, _BOX, _BOX_HEIGHT)] if gone else drawn


def _shortened(label: str, limit: int) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _rect(x: int, y: int, width: int, height: int, paint: _Paint, stroke: float = 1.2) -> str:
    dash = f' stroke-dasharray="{paint.dash}"' if paint.dash else ""
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="4"'
    return f'<rect {place} fill="{paint.fill}" stroke="{paint.stroke}" stroke-width="{stroke}"{dash}/>'


def _strike(x: int, y: int, width: int, height: int) -> str:
    return f'<path d="M{x} {y + height}l{width} {-height}" stroke="{_ALARM}" stroke-width="1.5"/>'


def _fact(fact: Fact) -> list[_Span]:
    spans = [_Span(fact.name + " ", _GREY)]
    if fact.was:
        spans.append(_Span(f"{fact.was} → ", _GREY))
    fill = _ALARM if fact.alarming else _CHANGED if fact.changed else _INK
    return [*spans, _Span(fact.value, fill, fact.changed)]


def _flowed(pieces: Iterable[Sequence[_Span]], width: int, gap: int) -> list[list[_Span]]:
    lines: list[list[_Span]] = []
    used = 0.0
    space = " " if gap == 1 else "\u00a0" * gap  # SVG draws only one of several plain spaces
    for piece in pieces:
        needed = sum(_width(span.text, _SIZE, span.bold) for span in piece)
        if lines and used + _width(space, _SIZE) + needed <= width:
            lines[-1] += [replace(piece[0], text=space), *piece]
            used += _width(space, _SIZE) + needed
        else:
            lines.append(list(piece))
            used = needed
    return lines


def _text(x: int, y: int, spans: Iterable[_Span], size: int = _SIZE, anchor: str = "start") -> str:
    inner = ""
    for (fill, bold), same in groupby(spans, key=lambda span: (span.fill, span.bold)):
        weight = ' font-weight="bold"' if bold else ""
        inner += f'<tspan fill="{fill}"{weight}>{escape("".join(span.text for span in same))}</tspan>'
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" font-size="{size}"{place}>{inner}</text>'


# Parts of the font size, as Verdana and DejaVu Sans have them; what is not named is 0.63 wide.
_EMS = {
    **dict.fromkeys("ijl.,:;'|! \u00a0", 0.34),
    **dict.fromkeys("tfrI()[]", 0.42),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 0.75),
    **dict.fromkeys("mwMW<>=→≠", 0.9),
}


def _width(text: str, size: int, bold: bool = False) -> float:
    """About how wide that is in the widest of the fonts named here."""
    return sum(_EMS.get(char, 0.63) for char in text) * size * (1.12 if bold else 1)
