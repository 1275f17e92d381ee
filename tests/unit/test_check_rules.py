"""Each kind of disagreement is found in a small repository, and none in this one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.kits.docskit import ROOT, section
from tidelog.lab.checkers import ALWAYS_TRUE

RULES = """\
# The rules

S1 is a section, and S5 has letters.

## S1 Replicas

### S1.1 One leads, the others follow.

What this means.

- In: `broker.partition`
- Held by: `tests/unit/test_a.py::test_it`
- Differs: in a detail.

### S1.2 A rule of the future.

- Not yet: anything

## S5 Stories

### S5 a A story.

- In: `src/tidelog/broker/partition.py`, `broker`
- Held by: `tests/unit/test_a.py::test_it`, `tests/unit/test_a.py::test_in_a_class`
"""
EDGES = """\
# Edge cases

### Edge case 2: The answer names the epoch.

- In: `broker.partition`
- Held by: `tests/unit/test_a.py::test_it`

### A rule without a number

- In: `broker.partition`
- Held by: `tests/unit/test_a.py::test_it`
"""
TESTS = "def test_it(): ...\n\nclass TestIt:\n    async def test_in_a_class(self): ...\n"
RULEBOOK = (
    'RULES = {"S1.1": "One leads, the others follow.", "S5": "Stories", "edge case 2": "The answer names the epoch."}'
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_rules", ROOT / "tools" / "check_rules.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "docs/RULES.md": RULES,
        "docs/EDGE_CASES.md": EDGES,
        "src/tidelog/lab/rulebook.py": RULEBOOK,
        "src/tidelog/broker/__init__.py": "",
        "src/tidelog/broker/partition.py": '"""S1.1, S5 a and S5 (a)."""',
        "tests/unit/test_a.py": TESTS,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def change(root: Path, name: str, before: str, after: str) -> None:
    text = (root / name).read_text()
    assert before in text
    (root / name).write_text(text.replace(before, after))


def test_a_repository_in_which_all_agrees(tool: ModuleType, root: Path) -> None:
    report = tool.check(root)
    assert report.problems == []
    assert [rule.number for rule in report.rules] == ["S1.1", "S1.2", "S5 a", "edge case 2", "A rule without a number"]
    # S1 and S5 of the page; S1.1 and S5 a twice of the module; three of the rulebook.
    assert report.references == 8
    assert report.summary() == (
        "5 rules, 8 references to them\n"
        "not there yet, or in part (1): S1.2\n"
        "done in another way (1): S1.1\n"
        "without a test (1): S1.2"
    )


@pytest.mark.parametrize(
    ("name", "text", "unknown"),
    [
        ("src/tidelog/a.py", '"""What S1.3 says."""', "S1.3"),
        ("src/tidelog/a.pyi", "# S2", "S2"),
        ("tests/sim/stories.txt", "S1.1, S7.1\n", "S7.1"),
        ("docs/tide/a.svg", "<tspan>S1.4: A sentence</tspan>", "S1.4"),
        ("README.md", "See (S1.10).", "S1.10"),
        ("docs/A.md", "as S5 (b) tells", "S5 b"),
        ("docs/A.md", "as S5 c tells", "S5 c"),
        ("bench/a.py", "# edge case 3", "edge case 3"),
        ("docs/A.md", "Edge cases 2 and 31", "edge case 31"),
        ("docs/A.md", "edge cases 2, 7 and 2", "edge case 7"),
        ("docs/A.md", "an edge\ncase 4", "edge case 4"),
        ("tests/unit/test_b.py", "def test_edge_09_a(): ...", "edge case 9"),
        ("tests/unit/test_b.py", "def test_edge_02_and_10_a(): ...", "edge case 10"),
        ("tests/unit/test_b.py", "def test_s13_1_a(): ...", "S13.1"),
        ("tests/unit/test_b.py", "def test_s5_b_a(): ...", "S5 b"),
    ],
)
def test_a_reference_that_leads_nowhere(tool: ModuleType, root: Path, name: str, text: str, unknown: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{text}\n")
    assert tool.check(root).problems == [f"{name}:1: there is no {unknown}"]


@pytest.mark.parametrize(
    "text",
    [
        "S1 a leader",
        "POLL_S5 = 0.002",
        "xS9.9",
        "NOS3",
        "edge cases of 9 kinds",
        "test_seconds_7_",
        "test_s3_0_x",
        "S1.1, S5 a, edge cases 2, 2 and 2; test_s1_1_it, test_s5_a_it, test_edge_02_it",
    ],
)
def test_what_is_no_wrong_reference(tool: ModuleType, root: Path, text: str) -> None:
    (root / "README.md").write_text(text)
    assert tool.check(root).problems == []


def test_a_number_that_is_given_twice(tool: ModuleType, root: Path) -> None:
    change(root, "docs/RULES.md", "### S1.2 A rule", "### S1.1 A rule")
    assert "there are two rules S1.1" in tool.check(root).problems


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("`broker.partition`", "`broker.partitions`", "names the module broker.partitions, which does not exist"),
        ("`broker.partition`", "`src/tidelog/no.py`", "names the module src/tidelog/no.py, which does not exist"),
        ("::test_it`", "::test_that`", "names the test tests/unit/test_a.py::test_that, which does not exist"),
        ("test_a.py::", "test_b.py::", "names the test tests/unit/test_b.py::test_it, which does not exist"),
        ("::test_it`", "::TestIt`", "names the test tests/unit/test_a.py::TestIt, which does not exist"),
        ("::test_it`", "`", "names the test tests/unit/test_a.py, which does not exist"),
        ("- Held by: ", "Held by: ", "has no test, and does not say what is not there yet"),
        ("- In: ", "- Where: ", "names no module"),
    ],
)
def test_a_rule_that_says_wrong_things(tool: ModuleType, root: Path, before: str, after: str, problem: str) -> None:
    text = (root / "docs/RULES.md").read_text()
    assert before in text
    (root / "docs/RULES.md").write_text(text.replace(before, after, 1))
    assert tool.check(root).problems == [f"docs/RULES.md:7: S1.1 {problem}"]


@pytest.mark.parametrize(
    ("sentence", "number"),
    [("One leads, the others follow.", "S1.1"), ("Stories", "S5"), ("The answer names the epoch.", "edge case 2")],
)
def test_a_sentence_of_the_lab_that_the_page_does_not_have(
    tool: ModuleType, root: Path, sentence: str, number: str
) -> None:
    change(root, tool.RULEBOOK, sentence, "Something else.")
    problem = f"{tool.RULEBOOK}: {number} is 'Something else.'; the page says {sentence!r}"
    assert tool.check(root).problems == [problem]


def test_a_failure_is_told_and_ends_the_check_with_1(
    tool: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "ROOT", root)
    assert tool.main() == 0
    (root / "README.md").write_text("S9.9")
    assert tool.main() == 1
    assert capsys.readouterr().err == "README.md:1: there is no S9.9\n"


# This repository


def test_rules_and_repository_agree(tool: ModuleType) -> None:
    assert tool.check(ROOT).problems == []


def test_each_rule_of_the_simulator_has_an_entry() -> None:
    text = section(ROOT / "docs" / "EDGE_CASES.md", "Always true")
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert [rule.name for rule in ALWAYS_TRUE] == headings[: len(ALWAYS_TRUE)]


def test_edge_cases_have_tests_of_their_name(tool: ModuleType) -> None:
    """Each that is not left to transactions as a whole."""
    for rule in tool.check(ROOT).rules:
        if rule.number.startswith("edge case ") and rule.tests:
            number = int(rule.number.removeprefix("edge case "))
            assert any(f"_{number:02}_" in test.partition("::test_edge")[2] for test in rule.tests), rule.number
