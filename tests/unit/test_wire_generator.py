"""The script that makes the declarations: it merges releases, stops at contradictions, and says the same each time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PEERS = [ROOT / ".cache" / "peers" / f"kafka-{release}" / "libs" for release in ("3.9.1", "4.1.0")]
sys.path.append(str(ROOT / "tools"))

from kafka_definitions import MessageFacts, merged_messages, read_message  # noqa: E402


def definition(valid: str, fields: list[dict[str, Any]], **more: Any) -> MessageFacts:
    facts = {"name": "X", "type": "data", "validVersions": valid, "flexibleVersions": "2+", "fields": fields} | more
    return read_message("// a comment\n" + json.dumps(facts))


def number(name: str, versions: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "int32", "versions": versions} | more


def merged(older: MessageFacts, newer: MessageFacts) -> MessageFacts:
    return merged_messages({"1.0.0": {older.name: older}, "2.0.0": {newer.name: newer}})[newer.name]


def test_the_union_of_two_releases() -> None:
    older = definition("0-2", [number("A", "0+"), number("Gone", "0-1"), number("B", "1+")])
    newer = definition("2-4", [number("A", "0-3"), number("B", "1+"), number("C", "3+", ignorable=True)])
    result = merged(older, newer)
    assert str(result.valid) == "0-4"
    assert [(field.kafka_name, str(field.versions)) for field in result.fields] == [
        ("A", "0-3"),
        ("Gone", "0-1"),
        ("B", "1+"),
        ("C", "3+"),
    ]


def test_a_dropped_message_stays() -> None:
    older = definition("0-2", [number("A", "0+")])
    assert merged(older, definition("none", [])) == older


def test_a_tagged_field_may_come_to_an_old_version() -> None:
    tagged = number("T", "2+", taggedVersions="2+", tag=0)
    older = definition("0-2", [number("A", "0+")])
    assert len(merged(older, definition("0-2", [number("A", "0+"), tagged])).fields) == 2


CONTRADICTIONS = [
    definition("0-2", [number("A", "1+")]),
    definition("0-2", [number("A", "0+", default="-1")]),
    definition("0-2", [number("A", "0+") | {"type": "int64"}]),
    definition("0-2", [number("A", "0+"), number("B", "0+")]),
    definition("0-2", [number("A", "0+", nullableVersions="0+")]),
    definition("0-2", [number("A", "0+")], flexibleVersions="1+"),
    definition("4-5", [number("A", "0+")]),
]


@pytest.mark.parametrize("newer", CONTRADICTIONS)
def test_contradictions_stop_it(newer: MessageFacts) -> None:
    with pytest.raises(SystemExit, match="X"):
        merged(definition("0-2", [number("A", "0+")]), newer)


@pytest.mark.jvm
def test_the_committed_declarations_are_what_the_script_writes(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "tools" / "generate_messages.py"), "--into", str(tmp_path), *map(str, PEERS)]
    subprocess.run(script, check=True, capture_output=True)
    committed = ROOT / "src" / "tidelog" / "wire" / "messages"
    assert {path.name: path.read_text() for path in tmp_path.glob("*.py")} == {
        path.name: path.read_text() for path in committed.glob("*.py")
    }
