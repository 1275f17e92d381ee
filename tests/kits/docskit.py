"""The commands that stand in the documentation: those of fenced blocks, and those in the middle of a sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(tidelog [^`\n]+)`")
_HEREDOC = re.compile(r"<<'(\w+)'")
_SEPARATORS = re.compile(r"[|;&<>()]+")
_SHELL_WORDS = ("until", "while", "if", "do", "then", "nohup", "!")


class Command(NamedTuple):
    """`tidelog WORD...`, and the text in which it stands."""

    words: tuple[str, ...]
    text: str


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of these languages; "" is one that names none."""
    return [body for language, body in _FENCED.findall(page.read_text()) if language in languages]


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next one of the same level."""
    text = page.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return text[start : end if end >= 0 else len(text)]


def console_lines(text: str) -> list[str]:
    """What is typed in the `console` blocks of a text: lines after `$ `, with the lines of their here-documents."""
    typed: list[str] = []
    for language, body in _FENCED.findall(text):
        if language != "console":
            continue
        ends_at = None
        for line in body.splitlines():
            if ends_at is not None:
                typed[-1] += f"\n{line}"
                ends_at = None if line == ends_at else ends_at
            elif line.startswith("$ "):
                typed.append(line[2:])
                here = _HEREDOC.search(line)
                ends_at = here[1] if here else None
    return typed


def tidelog_commands(page: Path) -> Iterator[Command]:
    for body in blocks(page, "console", "sh", ""):
        typed = console_lines(f"```console\n{body}```\n") or body.replace("\\\n", " ").splitlines()
        for line in typed:
            yield from _in_line(line.partition("\n")[0])
    for span in _SPAN.findall(_FENCED.sub("", page.read_text())):
        yield from _in_line(span)


def _in_line(line: str) -> Iterator[Command]:
    """Those of one line of a shell, which may be a pipeline, a loop or a comment."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "{}%,:@!$"
        words = list(lexer)
    except ValueError:
        return  # a sentence with an apostrophe: it is output, not a command
    command: list[str] = []
    for word in [*words, ";"]:
        if not _SEPARATORS.fullmatch(word):
            command.append(word)
            continue
        while command and command[0] in _SHELL_WORDS:
            del command[0]
        if command[:1] == ["tidelog"] and len(command) > 1:
            yield Command(tuple(command[1:]), line)
        command = []
