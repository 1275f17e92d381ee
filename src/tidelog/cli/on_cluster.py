"""What all commands that talk to a cluster share: where it is, and what a failure says."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.commands import Seconds, shortened
from tidelog.cli.waiting import Ends, Watch, error_text
from tidelog.client.addresses import Address, address_text, parse_bootstrap
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster
    from tidelog.client.settings import ClientSettings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_INTERRUPTED = 130
_TIMEOUT = "tidelog.cli.on_cluster.timeout_s"


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


def _keep_timeout(ctx: click.Context, parameter: click.Parameter, timeout_s: float | None) -> None:
    if timeout_s is not None:
        if not math.isfinite(timeout_s):
            raise click.BadParameter(f"{timeout_s} is not a number of seconds")
        ctx.meta[_TIMEOUT] = timeout_s


def timeout_option(help: str) -> Callable[[F], F]:
    """--timeout, which `on_cluster` and `given_timeout_s` find in click's context."""
    return click.option(
        "--timeout",
        metavar="SECONDS",
        type=Seconds(min_open=True),
        callback=_keep_timeout,
        expose_value=False,
        help=help,
    )


call_timeout_option = timeout_option(
    "Give up after so long. By default an address that refuses is an error at once, and each call has 60 s."
)
"""For commands that make some calls and end."""


def given_timeout_s() -> float | None:
    """What --timeout says, in seconds; None if it was not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_TIMEOUT)


def on_cluster(bootstrap: list[Address], work: Callable[[Cluster], Awaitable[T]], ends: Ends = Ends.AS_A_WHOLE) -> T:
    """Run it with a connected cluster. What fails is said in one line and exits with 1; Ctrl-C says nothing.

    What it waits for is told on standard error, and `ends` says what --timeout means.
    """
    from tidelog.client.cluster import Cluster
    from tidelog.client.waits import Waits
    from tidelog.host.clock import system_random

    timeout_s = given_timeout_s()
    waits = Waits()
    watch = Watch(waits, timeout_s, ends)

    async def connected() -> Cluster:
        random, settings = system_random(), _settings(timeout_s)
        patience_ms = None if timeout_s is None else timeout_s * 1000
        try:
            return await Cluster.open(bootstrap, random=random, settings=settings, timeout_ms=patience_ms, waits=waits)
        except TidelogError as failure:
            raise _not_connected(bootstrap, failure) from failure

    async def main() -> T:
        if timeout_s is not None and ends is Ends.AS_A_WHOLE:
            waits.end_all(timeout_s * 1000, asyncio.get_running_loop().time())
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(watch.run(limit))
            try:
                async with await connected() as cluster:
                    return await work(cluster)
            finally:
                watching.cancel()

    try:
        return run_until_interrupted(main())
    except TidelogError as failure:
        raise click.ClickException(error_text(failure)) from failure
    except TimeoutError as failure:
        if watch.gave_up is None:
            raise
        raise click.ClickException(watch.gave_up) from failure
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _settings(timeout_s: float | None) -> ClientSettings:
    """No call takes longer than --timeout, and none has more time for one answer than it has by default."""
    from tidelog.client.settings import DEFAULT_SETTINGS

    if timeout_s is None:
        return DEFAULT_SETTINGS
    timeout_ms = max(int(timeout_s * 1000), 1)
    return DEFAULT_SETTINGS._replace(
        default_api_timeout_ms=timeout_ms,
        request_timeout_ms=min(timeout_ms, DEFAULT_SETTINGS.request_timeout_ms),
        socket_connection_setup_timeout_ms=min(timeout_ms, DEFAULT_SETTINGS.socket_connection_setup_timeout_ms),
    )


def _not_connected(bootstrap: list[Address], failure: TidelogError) -> click.ClickException:
    from tidelog.client.errors import last_cause
    from tidelog.net.calling import ConnectionClosedError

    cause = last_cause(failure)
    if not isinstance(cause, ConnectionClosedError):
        return click.ClickException(error_text(failure))
    where = ",".join(address_text(address) for address in bootstrap)
    return click.ClickException(
        f"no broker answers at {where} ({cause}). Start one with `tidelog up`, or name another with "
        f"--bootstrap HOST:PORT or TIDELOG_BOOTSTRAP."
    )


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
