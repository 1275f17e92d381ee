"""kaskade without a terminal: one request per line of standard input, one answer per line of standard output.

Its own command line starts it; we press its keys and read its tables as a user does. An answer waits until the screen
shows what is asked for, and is {"error": ...} with what kaskade said if that takes too long.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time

HOME = tempfile.TemporaryDirectory(prefix="kaskade-")
for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
    os.environ[variable] = HOME.name

from kaskade.main import cli  # noqa: E402
from textual.app import App  # noqa: E402
from textual.css.query import NoMatches  # noqa: E402
from textual.pilot import Pilot  # noqa: E402
from textual.widgets import DataTable, Input  # noqa: E402

DEADLINE_S = 20.0
SIZE = (200, 60)
OUT = sys.stdout


class NotShownError(Exception):
    """The screen did not come to show it."""


async def until(pilot: Pilot, condition, what: str) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(LookupError, NoMatches):
            if condition():
                return
        if time.monotonic() > give_up_at:
            said = [f"{note.title}: {note.message}" for note in pilot.app._notifications]
            raise NotShownError(f"{what} on {pilot.app.screen}; kaskade said {said}")
        await pilot.pause(0.05)


def table(pilot: Pilot, name: str) -> list[list[str]]:
    shown = pilot.app.screen.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in shown.get_row_at(number)] for number in range(shown.row_count)]


def row(pilot: Pilot, topic: str) -> list[str]:
    """Name, partitions, replicas, in-sync ones, groups, members, records and lag; none before all are known."""
    for name, *numbers in table(pilot, "topics-table"):
        if name == topic and all(number.strip("≈").isdigit() for number in numbers):
            return [name, *(number.strip("≈") for number in numbers)]
    return []


def fill(pilot: Pilot, **values: str) -> None:
    for name, value in values.items():
        pilot.app.screen.query_one(f"#{name}", Input).value = value


async def ready(pilot: Pilot, name: str) -> None:
    """Until the table has been loaded, which takes the focus from it, and takes keys."""
    shown = pilot.app.screen.query_one(f"#{name}", DataTable)
    await until(pilot, lambda: not shown.loading, f"{name} is not loaded")
    if not shown.has_focus:
        await pilot.press("tab")
    await until(pilot, lambda: shown.has_focus, f"{name} takes no keys")


async def select(pilot: Pilot, topic: str) -> None:
    """Filter for the topic, and wait until all is known of it."""
    await ready(pilot, "topics-table")
    await pilot.press("/")
    await until(pilot, lambda: "Filter" in type(pilot.app.screen).__name__, "no filter")
    pilot.app.screen.query_one(Input).value = topic
    await pilot.press("enter")
    await until(pilot, lambda: row(pilot, topic), f"{topic} is not listed")
    await ready(pilot, "topics-table")


async def topics(pilot: Pilot, request: dict) -> dict:
    await select(pilot, request["topic"])
    return {"row": row(pilot, request["topic"])}


async def create(pilot: Pilot, request: dict) -> dict:
    await ready(pilot, "topics-table")
    await pilot.press("n")
    await until(pilot, lambda: pilot.app.screen.query_one("#name"), "no form")
    fill(pilot, name=request["topic"], partitions=str(request["partitions"]), retention=str(request["retention_ms"]))
    await pilot.press("ctrl+s")
    await until(pilot, lambda: row(pilot, request["topic"]), "the topic is not listed")
    return {"row": row(pilot, request["topic"])}


async def describe(pilot: Pilot, request: dict) -> dict:
    await select(pilot, request["topic"])
    await pilot.press("d")
    await until(pilot, lambda: pilot.app.screen.query_one("#group-members-table"), "no details")
    names = ("partitions", "configurations", "groups", "group-offsets", "group-members")
    return {name: table(pilot, f"{name}-table") for name in names}


async def edit(pilot: Pilot, request: dict) -> dict:
    await select(pilot, request["topic"])
    await pilot.press("e")
    await until(pilot, lambda: pilot.app.screen.query_one("#retention"), "no form")
    fill(pilot, partitions=str(request["partitions"]), retention=str(request["retention_ms"]))
    await pilot.press("ctrl+s")
    partitions = str(request["partitions"])
    await until(pilot, lambda: row(pilot, request["topic"])[1] == partitions, "the topic is as it was")
    return {"row": row(pilot, request["topic"])}


async def delete(pilot: Pilot, request: dict) -> dict:
    await select(pilot, request["topic"])
    await pilot.press("ctrl+d")
    await until(pilot, lambda: pilot.app.screen.query_one("#topic-confirmation"), "no question")
    fill(pilot, **{"topic-confirmation": request["topic"]})
    await pilot.press("enter")
    await until(pilot, lambda: table(pilot, "topics-table") == [], "the topic is still listed")
    return {}


async def records(pilot: Pilot, request: dict) -> dict:
    """Page by page, in the order in which they are shown."""
    give_up_at = time.monotonic() + DEADLINE_S
    while len(table(pilot, "records-table")) < request["count"]:
        if time.monotonic() > give_up_at:
            raise NotShownError(f"only {len(table(pilot, 'records-table'))} records are shown")
        await ready(pilot, "records-table")
        await pilot.press("n")
    await ready(pilot, "records-table")
    return {"rows": table(pilot, "records-table")}


ADMIN = {"topics": topics, "create": create, "describe": describe, "edit": edit, "delete": delete}
CONSUMER = {"records": records}


def answer(request: dict) -> dict:
    found: dict = {}
    play = {**ADMIN, **CONSUMER}[request["op"]]

    async def headless(app: App) -> None:
        async with app.run_test(size=SIZE) as pilot:
            found.update(await play(pilot, request))

    App.run = lambda app, *_, **__: asyncio.run(headless(app))
    mode = ["admin"] if request["op"] in ADMIN else ["consumer", "--topic", request["topic"]]
    try:
        cli([*mode, "--bootstrap-servers", request["bootstrap"], *request["options"]], standalone_mode=False)
    except Exception as error:
        return {"error": -1, "message": f"{type(error).__name__}: {error}"}
    return found


for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        answered = answer(json.loads(line))
    print(json.dumps(answered), file=OUT, flush=True)
