"""Fails where the rules and the repository do not agree.

The rules stand in docs/RULES.md (S1.1 and so on) and docs/EDGE_CASES.md. Every reference to one of them, in code,
tests, docs and pictures, must lead to a rule. Every rule names modules and tests that exist, or says what is not there
yet. The sentences that frames of the lab show (lab/rulebook.py) are the headings of the pages. Nothing is imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("docs/RULES.md", "docs/EDGE_CASES.md")
RULEBOOK = "src/tidelog/lab/rulebook.py"
SEARCHED = (
    "src",
    "tests",
    "tools",
    "bench",
    "peers",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
SUFFIXES = (".py", ".pyi", ".pxd", ".md", ".svg", ".txt", ".toml")
MADE_UP = "test_check_rules.py"
"""It refers to rules that do not exist, in order to see the check fail."""

_HEADING = re.compile(r"#{2,3} (?:(S\d+(?:\.\d+)?(?: [a-d])?) |Edge case (\d+): )?(.+)")
_FACT = re.compile(r"- (In|Held by|Not yet|Differs): (.+)")
_QUOTED = re.compile(r"`([^`]+)`")
_RULE = re.compile(r"\bS\d+(?:\.\d+)?(?: \(?[a-d]\)?(?!\w))?")
_TEST_OF_RULE = re.compile(r"\btest_s(\d+)_([1-9]\d*|[a-d])_")
_EDGES = re.compile(r"\bedge\s+cases?\s+(\d+(?:,\s+\d+)*(?:,?\s+and\s+\d+)?)", re.IGNORECASE)
_TEST_OF_EDGE = re.compile(r"\btest_edge_(\d+)(?:_and_(\d+))?")


@dataclass
class Rule:
    """An entry of a page: a heading of level three, and the facts listed below it."""

    number: str
    """As references write it: "S2.5", "S5 a", "edge case 7"; the heading where it has no number."""
    sentence: str
    place: str
    modules: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    not_yet: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)


@dataclass
class Report:
    rules: list[Rule]
    references: int
    problems: list[str]

    def summary(self) -> str:
        later = [rule.number for rule in self.rules if rule.not_yet]
        other = [rule.number for rule in self.rules if rule.differs]
        without = [rule.number for rule in self.rules if not rule.tests]
        return (
            f"{len(self.rules)} rules, {self.references} references to them\n"
            f"not there yet, or in part ({len(later)}): {', '.join(later)}\n"
            f"done in another way ({len(other)}): {', '.join(other)}\n"
            f"without a test ({len(without)}): {', '.join(without)}"
        )


def check(root: Path) -> Report:
    rules, sections, problems = _read_pages(root)
    sentences = sections | {rule.number: rule.sentence for rule in rules}
    references = list(_references(root))
    return Report(
        rules,
        len(references),
        [
            *problems,
            *(problem for rule in rules for problem in _of_rule(root, rule)),
            *(f"{place}: there is no {number}" for place, number in references if number not in sentences),
            *_of_rulebook(root, sentences),
        ],
    )


# The pages


def _read_pages(root: Path) -> tuple[list[Rule], dict[str, str], list[str]]:
    """All rules, the headings of numbered sections, and numbers that are given twice."""
    rules: list[Rule] = []
    sections: dict[str, str] = {}
    for page in PAGES:
        _read_page(page, (root / page).read_text().splitlines(), rules, sections)
    twice = [number for number, count in Counter(rule.number for rule in rules).items() if count > 1]
    return rules, sections, [f"there are two rules {number}" for number in twice]


def _read_page(page: str, lines: list[str], rules: list[Rule], sections: dict[str, str]) -> None:
    rule: Rule | None = None
    for place, line in enumerate(lines, 1):
        heading, fact = _HEADING.fullmatch(line), _FACT.fullmatch(line)
        if heading is not None:
            name, edge, sentence = heading.groups()
            number = f"edge case {edge}" if edge else name or sentence
            rule = Rule(number, sentence, f"{page}:{place}") if line.startswith("### ") else None
            if rule is not None:
                rules.append(rule)
            else:
                sections[number] = sentence
        elif fact is not None and rule is not None:
            _note(rule, *fact.groups())


def _note(rule: Rule, kind: str, text: str) -> None:
    if kind in ("In", "Held by"):
        (rule.modules if kind == "In" else rule.tests).extend(_QUOTED.findall(text))
    else:
        (rule.not_yet if kind == "Not yet" else rule.differs).append(text)


def _of_rule(root: Path, rule: Rule) -> Iterator[str]:
    what = f"{rule.place}: {rule.number}"
    if not rule.tests and not rule.not_yet:
        yield f"{what} has no test, and does not say what is not there yet"
    if not rule.modules and not rule.not_yet:
        yield f"{what} names no module"
    for module in rule.modules:
        if not _is_module(root, module):
            yield f"{what} names the module {module}, which does not exist"
    for test in rule.tests:
        if not _is_test(root, test):
            yield f"{what} names the test {test}, which does not exist"


def _is_module(root: Path, name: str) -> bool:
    if "/" in name:
        return (root / name).exists()
    path = root / "src" / "tidelog" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _is_test(root: Path, name: str) -> bool:
    path, _, function = name.partition("::")
    return function.startswith("test_") and function in _functions(root / path)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# Who refers to them


def _references(root: Path) -> Iterator[tuple[str, str]]:
    """Where, and to which number; headings of the pages are none."""
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        if name in PAGES:
            text = "\n".join("" if line.startswith("#") else line for line in text.splitlines())
        for start, number in _numbers(text):
            yield f"{name}:{text.count(chr(10), 0, start) + 1}", number


def _files(root: Path) -> Iterator[Path]:
    for name in SEARCHED:
        top = root / name
        found: Iterable[Path] = sorted(top.rglob("*")) if top.is_dir() else [top] * top.is_file()
        yield from (path for path in found if path.suffix in SUFFIXES and path.name != MADE_UP and path.is_file())


def _numbers(text: str) -> Iterator[tuple[int, str]]:
    for match in _RULE.finditer(text):
        yield match.start(), _plain(match[0])
    for match in _TEST_OF_RULE.finditer(text):
        yield match.start(), f"S{match[1]}{' ' if match[2].isalpha() else '.'}{match[2]}"
    for match in (*_EDGES.finditer(text), *_TEST_OF_EDGE.finditer(text)):
        for number in re.findall(r"\d+", match[0]):
            yield match.start(), f"edge case {int(number)}"


def _plain(reference: str) -> str:
    """ "S5 (a)" is S5 a. Only S5 has letters: behind another number an "a" is an article."""
    number, _, letter = reference.partition(" ")
    return f"{number} {letter.strip('()')}" if letter and number == "S5" else number


def _of_rulebook(root: Path, sentences: dict[str, str]) -> Iterator[str]:
    for number, sentence in _rulebook(root / RULEBOOK).items():
        if sentences.get(number) != sentence:
            yield f"{RULEBOOK}: {number} is {sentence!r}; the page says {sentences.get(number)!r}"


def _rulebook(path: Path) -> dict[str, str]:
    """The value of RULES."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["RULES"]:
            value: dict[str, str] = ast.literal_eval(node.value)
            return value
    raise ValueError(f"{path} has no RULES")


def main() -> int:
    report = check(ROOT)
    print(report.summary())
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
