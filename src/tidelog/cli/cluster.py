"""What all commands that talk to a cluster share: where it is, and what a failure says."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.commands import shortened
from tidelog.client.addresses import Address, address_text, parse_bootstrap
from tidelog.errors import ErrorCode, TidelogError

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_INTERRUPTED = 130


def _addresses(ctx: click.Context, parameter: click.Parameter, text: str) -> list[Address]:
    try:
        return checked_bootstrap(text)
    except ValueError as failure:
        raise click.BadParameter(str(failure)) from failure


def checked_bootstrap(text: str) -> list[Address]:
    """ValueError also for hosts that no name can be looked up for: their parts are too long, or empty."""
    addresses = parse_bootstrap(text)
    for host, _ in addresses:
        try:
            host.encode("idna")
        except UnicodeError as failure:
            raise ValueError(f"{shortened(host)!r} is no name of a host") from failure
    return addresses


bootstrap_option = click.option(
    "--bootstrap",
    "--bootstrap-server",
    "-b",
    "bootstrap",
    metavar="HOST:PORT",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    envvar="TIDELOG_BOOTSTRAP",
    show_envvar=True,
    callback=_addresses,
    help="A broker of the cluster; several with commas.",
)

_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `tidelog topics list`, or make it with `tidelog topics create`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "with --if-not-exists that is no error",
    ErrorCode.BROKER_NOT_AVAILABLE: "`tidelog topics describe` shows the ids of brokers that hold replicas",
    ErrorCode.OFFSET_OUT_OF_RANGE: "--offset earliest starts with what is still there",
}


def on_cluster(bootstrap: list[Address], work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run it with a connected cluster. What fails is said in one line and exits with 1; Ctrl-C says nothing."""
    from tidelog.client.cluster import Cluster
    from tidelog.host.clock import system_random
    from tidelog.net.calling import CannotConnectError

    async def main() -> T:
        async with await Cluster.open(bootstrap, random=system_random()) as cluster:
            return await work(cluster)

    try:
        return run_until_interrupted(main())
    except CannotConnectError as failure:
        where = ",".join(address_text(address) for address in bootstrap)
        raise click.ClickException(
            f"no broker answers at {where} ({failure}). Start one with `tidelog up`, or name another with "
            f"--bootstrap HOST:PORT or TIDELOG_BOOTSTRAP."
        ) from failure
    except TidelogError as failure:
        hint = _HINTS.get(failure.code)
        raise click.ClickException(f"{failure}{f'; {hint}' if hint else ''}") from failure
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def run_until_interrupted(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run. Ctrl-C cancels `main`, raises KeyboardInterrupt here, and a second one does not wait for that.

    asyncio.run has a handler of its own, but a signal that comes just before the loop goes to sleep does not wake it:
    the command would wait for its next event. The loop's own handler writes to a pipe that the loop watches. Python
    delivers signals to its main thread, so a command that runs in another thread has no handler.
    """
    interrupted = False

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            loop.remove_signal_handler(signal.SIGINT)
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


def key_values(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """A callback for options and arguments of the form NAME=VALUE."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name] = value
    return found


def config_option(**attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", callback=key_values, **attributes)
