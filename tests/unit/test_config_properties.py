"""Java's .properties format. What is expected here is what java.util.Properties made of the same texts (JDK 17)."""

from __future__ import annotations

import pytest

from tidelog.config.errors import ConfigError
from tidelog.config.properties import format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a  =  b  ", {"a": "b  "}),
        ("a = = b", {"a": "= b"}),
        ("a : = b", {"a": "= b"}),
        ("# a=b\n! c=d\n   # e\nf=g", {"f": "g"}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("# a comment does not go on \\\na=b", {"a": "b"}),
        ("a=b,\\\n   c,\\\n   d", {"a": "b,c,d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b:c", {"a:b": "c"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("a=\\u00e9\\u0041", {"a": "éA"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=ü", {"a": "ü"}),
        ("a=1\na=2", {"a": "2"}),
        ("=b", {"": "b"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("log.dirs=C\\:\\\\data", {"log.dirs": "C:\\data"}),
    ],
)
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=x"])
def test_bad_escapes(text: str) -> None:
    with pytest.raises(ConfigError, match="Malformed"):
        parse_properties(text)


@pytest.mark.parametrize("value", ["", " a b ", "\\", "a\\", "#!=:", "é中", "line\nbreak", "\t", "\\u0041"], ids=repr)
def test_properties_survive_being_written(value: str) -> None:
    assert parse_properties(format_properties({"key": value, "k:2": "x"})) == {"key": value, "k:2": "x"}
    assert format_properties({"key": value}).isascii()
