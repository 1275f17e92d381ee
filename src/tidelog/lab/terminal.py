"""A step of a story in a terminal: rows of boxes, records with the tide marks below them or partitions of a group.

    Console().print(StepDrawing(strip, 3))

Colour is an addition: a box also shows by its lines whether it is safe (solid), not so (dashed), gone (crossed), new
(+) or different (≠), and a changed value shows the one before it. So pipes and NO_COLOR lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tidelog.lab.frames import Role, Strip
from tidelog.lab.layout import Box, Columns, Fact, Look, Marker, Row, columns, frame_facts, legend, rows
from tidelog.lab.rulebook import sentences

_MARGIN = 20
_LABEL_MAX = 8
_MARKERS_BEHIND = 8  # room for "^HW=LEO" right of the last box

_STYLE = {Look.SOLID: "bold white on blue", Look.DASHED: "black on yellow", Look.GONE: "strike red"}
_DIFFERS = "bold white on magenta"
_NAME = {
    Role.LEADER: "bold green",
    Role.FOLLOWER: "bold",
    Role.FROZEN: "bold cyan",
    Role.DEAD: "dim",
    Role.MEMBER: "bold",
    Role.OUTSIDE: "dim",
}
_CHANGED = "bold cyan"
_ALARM = "bold red"


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a box, the corners from top left to bottom right."""

    corners: tuple[str, str, str, str]
    top: str
    side: str

    def strokes(self, width: int, above: str, middle: str, below: str) -> tuple[str, str, str]:
        left_top, right_top, left_bottom, right_bottom = self.corners
        return (
            left_top + above.center(width, self.top) + right_top,
            self.side + middle.center(width) + self.side,
            left_bottom + below.center(width, self.top) + right_bottom,
        )


@dataclass(frozen=True, slots=True)
class _Glyphs:
    """The characters of a drawing: line drawing where the terminal's encoding has it, else plain ASCII."""

    lines: dict[Look, _Lines]
    differs: str
    mark: str
    arrow: str
    more: str


_UNICODE = _Glyphs(
    {
        Look.SOLID: _Lines(("┌", "┐", "└", "┘"), "─", "│"),
        Look.DASHED: _Lines(("┌", "┐", "└", "┘"), "╌", "┊"),
        Look.GONE: _Lines(("╳", "╳", "╳", "╳"), "╌", "╳"),
    },
    differs="≠",
    mark="▲",
    arrow="→",
    more="…",
)
_ASCII = _Glyphs(
    {
        Look.SOLID: _Lines(("+", "+", "+", "+"), "-", "|"),
        Look.DASHED: _Lines((".", ".", ".", "."), ".", ":"),
        Look.GONE: _Lines(("x", "x", "x", "x"), ".", "x"),
    },
    differs="#",
    mark="^",
    arrow="->",
    more="..",
)


class StepDrawing:
    """One frame of a strip, for rich to print at whatever width there is."""

    def __init__(self, strip: Strip, index: int) -> None:
        self._strip = strip
        self._index = index

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pen = _Pen(_ASCII if options.ascii_only else _UNICODE, options.max_width)
        yield from pen.step(self._strip, self._index)


class LegendDrawing:
    """What the boxes of a story mean, to be printed once before the first step."""

    def __init__(self, strip: Strip | None = None) -> None:
        self._legend = legend(strip)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _ASCII if options.ascii_only else _UNICODE
        meanings = [
            (f"{glyphs.lines[look].side} {words} {glyphs.lines[look].side}", _STYLE[look])
            for look, words in self._legend.looks.items()
        ]
        meanings.append((f" {glyphs.differs} {self._legend.differs} ", _DIFFERS))
        meanings.append((" + new in this step ", "bold"))
        yield from _flow([Text(words, style) for words, style in meanings], options.max_width, indent=1)


class _Pen:
    """Draws at one width with one set of glyphs."""

    def __init__(self, glyphs: _Glyphs, width: int) -> None:
        self._glyphs = glyphs
        self._width = width

    def step(self, strip: Strip, index: int) -> Iterator[Text]:
        frame, before = strip.frames[index], strip.before(index)
        label = self._label_width(strip)
        slot = label + 5
        shown = columns([before, frame]).limited((self._width - _MARGIN - _MARKERS_BEHIND) // slot)
        yield from self._heading(f"{index + 1}/{len(strip.frames)}", frame.says, frame.rule)
        yield from self._facts(frame_facts(before, frame), indent=1)
        yield from (Text(f" {note}") for note in frame.notes)
        yield self._axis(shown, slot)
        for row in rows(before, frame):
            yield from self._boxes(row, shown, label)
            yield from self._markers(row.markers, shown, slot)
            yield from self._facts(row.facts, indent=4)
            yield Text()

    def _label_width(self, strip: Strip) -> int:
        """The same in all steps, so that the boxes do not move from one to the next."""
        drawn = (box for frame in strip.frames for row in rows(None, frame) for box in row.boxes.values())
        return min(_LABEL_MAX, max((len(box.label) for box in drawn), default=2))

    def _heading(self, number: str, says: str, rule: str) -> Iterator[Text]:
        words = [Text(number, "bold reverse"), *(Text(word, "bold") for word in says.split())]
        yield from _flow(words, self._width, indent=1, gap=1)
        for sentence in sentences(rule):
            yield from _flow([Text(word, "dim") for word in sentence.split()], self._width, indent=5, gap=1)

    def _axis(self, shown: Columns, slot: int) -> Text:
        before = f"{self._glyphs.more} {shown.hidden} more" if shown.hidden else shown.axis
        numbers = "".join(str(number).center(slot - 1) + " " for number in shown.numbers)
        return Text(before.rjust(_MARGIN - 1) + " " + numbers.rstrip(), "dim")

    def _names(self, row: Row) -> tuple[Text, Text, Text]:
        """What stands left of the boxes: one text for each of their three lines."""
        style = _CHANGED if row.was else _NAME[row.role]
        # Appended, because a style given to Text itself would colour the boxes that follow.
        return (
            Text().append(f" {row.name}", style),
            Text().append(f" {row.words}", style),
            Text().append(f" was {row.was}" if row.was else "", "dim"),
        )

    def _boxes(self, row: Row, shown: Columns, label: int) -> Iterator[Text]:
        blank = (" " * (label + 4),) * 3
        boxes = [row.boxes.get(number) for number in shown.numbers]
        strokes = [self._box(box, label) if box else blank for box in boxes]
        for height, line in enumerate(self._names(row)):
            line.truncate(_MARGIN - 1)
            line.append(" " * (_MARGIN - len(line)))
            for box, stroke in zip(boxes, strokes, strict=True):
                line.append(stroke[height], _box_style(box, row.role)).append(" ")
            line.rstrip()
            yield line

    def _box(self, box: Box, label: int) -> tuple[str, str, str]:
        above = ("+" if box.new else "") + (self._glyphs.differs if box.differs else "")
        text = box.label
        if len(text) > label:
            text = text[: label - len(self._glyphs.more)] + self._glyphs.more
        word, number = box.term
        return self._glyphs.lines[box.look].strokes(label + 2, above, text, f"{word[0]}{number}")

    def _markers(self, marks: Iterable[Marker], shown: Columns, slot: int) -> Iterator[Text]:
        """Each mark at the left edge of its box; where two would touch, the second goes one line down."""
        lines: list[Text] = []
        for mark in marks:
            if not shown.first <= mark.offset <= shown.first + shown.count:
                continue
            edge = _MARGIN + (mark.offset - shown.first) * slot
            line = next((line for line in lines if len(line) < edge), None)
            if line is None:
                lines.append(line := Text())
            line.append(" " * (edge - len(line)))
            line.append(self._glyphs.mark + mark.text, _CHANGED if mark.changed else "")
        yield from lines

    def _facts(self, facts: Iterable[Fact], indent: int) -> Iterator[Text]:
        yield from _flow([self._fact(fact) for fact in facts], self._width, indent)

    def _fact(self, fact: Fact) -> Text:
        text = Text().append(fact.name + " ", "dim")
        if fact.was:
            text.append(f"{fact.was} {self._glyphs.arrow} ", "dim")
        return text.append(fact.value, _ALARM if fact.alarming else _CHANGED if fact.changed else "")


def _box_style(box: Box | None, role: Role) -> str:
    if box is None:
        return ""
    style = _DIFFERS if box.differs and box.look is not Look.GONE else _STYLE[box.look]
    return f"dim {style}" if role is Role.DEAD else style


def _flow(pieces: Iterable[Text], width: int, indent: int, gap: int = 3) -> Iterator[Text]:
    """The pieces side by side, on as many lines as the width asks for."""
    line = Text()
    for piece in pieces:
        if not line:
            line = Text(" " * indent).append_text(piece)
        elif len(line) + gap + len(piece) <= width:
            line.append(" " * gap).append_text(piece)
        else:
            yield line
            line = Text(" " * indent).append_text(piece)
    if line:
        yield line
