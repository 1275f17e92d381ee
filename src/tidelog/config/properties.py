"""Java's .properties format, in which server.properties and the meta.properties of log directories are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tidelog.config.errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_LINE_END = re.compile(r"\r\n|\r|\n")
_TO_ESCAPE = re.compile(r"[\\=:#!]|^ |[^ -~]")


def parse_properties(text: str) -> dict[str, str]:
    """Names and values. The last of several lines with one name counts, as in Java."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        name, value = _split(line)
        found[_unescape(name, line)] = _unescape(value, line)
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """In the order given, all of it ASCII."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, and with their continuations.

    A line that ends in an odd number of backslashes goes on in the next, whose leading blanks do not count; a comment
    does not go on.
    """
    parts: list[str] = []
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANK)
        if not parts and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield "".join([*parts, line])
        parts = []
    if parts:
        yield "".join(parts)


def _split(line: str) -> tuple[str, str]:
    """The name ends at the first `=`, `:` or blank that is not escaped; blanks around the separator do not count."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] != "u":
            return _ESCAPES.get(escaped, escaped)
        if not _HEX.fullmatch(escaped):
            raise ConfigError(f"Malformed \\uxxxx in the line `{line}`")
        return chr(int(escaped[1:], 16))

    plain = _ESCAPE.sub(character, text)
    # Java writes what lies beyond 16 bits as two surrogates.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(
        lambda match: "\\" + match[0] if " " <= match[0] <= "~" else f"\\u{ord(match[0]):04x}",
        text,
    )
