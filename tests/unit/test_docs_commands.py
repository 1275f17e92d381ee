"""Each `tidelog` command in the documentation exists, with its options; so do the settings that it shows in files."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.kits.docskit import PAGES, ROOT, blocks, console_lines, section, tidelog_commands
from tidelog.cli.main import main
from tidelog.config.broker import BrokerConfig
from tidelog.config.properties import parse_properties

_PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.|…")
OPERATIONS = ROOT / "docs" / "OPERATIONS.md"


def check(words: tuple[str, ...]) -> None:
    """click.UsageError if this is no command. Values are checked only where there are few to choose from."""
    command: click.Command = main
    rest = list(words)
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if _PLACEHOLDER.fullmatch(name):
            return
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"there is no command {name!r}")
        command, context = found, click.Context(found, parent=context, info_name=name)
    values, left, _ = command.make_parser(context).parse_args(rest)
    if left and not isinstance(command, click.Group):
        raise click.UsageError(f"{left} is too much")
    for parameter in command.params:
        given = values.get(parameter.name or "")
        for value in given if isinstance(given, list | tuple) else [given]:
            if isinstance(value, str) and isinstance(parameter.type, click.Choice):
                parameter.type.convert(value, parameter, context)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for command in tidelog_commands(page):
        try:
            check(command.words)
        except click.UsageError as failure:
            wrong.append(f"{command.text!r}: {failure.message}")
    assert not wrong, "\n".join(wrong)


def test_the_pages_have_commands() -> None:
    """So that a change of the kit does not make the test above empty."""
    counts = {page_name(page): len(list(tidelog_commands(page))) for page in PAGES}
    assert counts["docs/OPERATIONS.md"] > 80
    assert counts["README.md"] > 15
    assert counts["docs/PIPELINES.md"] > 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tidelog topic list", "no command 'topic'"),
        ("tidelog topics list --intern4l", "--intern4l"),
        ("seq 1 9 | tidelog produce orders --no-such-option", "--no-such-option"),
        ("tidelog elect cleanly --all", "cleanly"),
        ("tidelog down --data", "--data"),
        ("until tidelog cluster describe --jso | grep x; do sleep 1; done", ""),
    ],
)
def test_what_does_not_exist_is_found(tmp_path: Path, line: str, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n$ {line}\noutput\n```\n")
    (command,) = tidelog_commands(page)
    if said:
        with pytest.raises(click.UsageError, match=said):
            check(command.words)


def test_commands_are_found_where_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Call `tidelog status --json` first.\n\n```sh\ntidelog up --detach; tidelog down   # and done\n"
        "echo 'a;b' | tidelog produce t --header 'x=y;z' > out\n```\n"
        "```console\n$ cat <<'END'\ntidelog not this\nEND\ntidelog is up: nor this\n"
        "$ nohup tidelog broker --config f &\n```\n"
    )
    assert [command.words for command in tidelog_commands(page)] == [
        ("up", "--detach"),
        ("down",),
        ("produce", "t", "--header", "x=y;z"),
        ("broker", "--config", "f"),
        ("status", "--json"),
    ]
    assert console_lines(page.read_text())[0] == "cat <<'END'\ntidelog not this\nEND"


@pytest.mark.parametrize("text", blocks(OPERATIONS, "properties"))
def test_the_properties_files_that_are_shown_are_accepted(text: str) -> None:
    config = BrokerConfig.load(parse_properties(text), hostname="log1.internal")
    assert config.broker_id == 1


def test_links_of_the_operations_page_lead_somewhere() -> None:
    text = OPERATIONS.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or (OPERATIONS.parent / file).exists(), target
        if anchor:
            titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
            assert anchor in [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles], target


def test_a_section_ends_at_the_next_heading() -> None:
    assert "tidelog elect unclean" in section(OPERATIONS, "A partition is offline")
    assert "tidelog elect unclean" not in section(OPERATIONS, "A disk is full")
