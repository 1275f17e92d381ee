"""Where a broker listens and what it tells others: the rule behind Kafka's five listener settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.config.errors import ConfigError
from tidelog.config.values import invalid

_ENDPOINT = re.compile(r"([^:/]*)://(?:\[([0-9a-fA-F:.%\w-]*)\]|([^\[\]/:]*)|([0-9a-fA-F:]*:[0-9a-fA-F:]*)):(-?[0-9]+)")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_NOWHERE = ("0.0.0.0", "::")
SERVED_PROTOCOLS = ("PLAINTEXT",)


class Listener(NamedTuple):
    """A name with an address. To listen on, an empty host is every interface."""

    name: str
    host: str
    port: int
    """0: any free one; what is told is then the port that was bound."""
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines may reach it, and nothing asks them who they are."""
        return self.protocol == "PLAINTEXT" and not _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"  # an empty host is every interface, another name may be any address


@dataclass(frozen=True, slots=True)
class Listeners:
    """All of them. Always: each advertised name is bound, and the inter-broker name is advertised."""

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker: Listener
    """As it is advertised."""
    control_plane: Listener | None


def parse_listeners(values: Mapping[str, Any], originals: Mapping[str, str], hostname: str) -> Listeners:
    """ConfigError with all that is wrong. `values` has the typed settings, `originals` says which were set.

    `hostname` is advertised where a listener has no host.
    """
    problems: list[str] = []
    protocols = _protocol_map(values["listener.security.protocol.map"], problems)
    bound = _parse("listeners", values["listeners"], protocols, problems)
    _check_bound(values["listeners"], bound, problems)
    advertised = bound
    if values["advertised.listeners"]:
        advertised = _parse("advertised.listeners", values["advertised.listeners"], protocols, problems)
    advertised = tuple(listener._replace(host=listener.host or hostname) for listener in advertised)
    if not problems:
        _check_advertised(bound, advertised, problems)
    inter_broker = _inter_broker(values, originals, advertised, problems)
    control_plane = _control_plane(values["control.plane.listener.name"], bound, inter_broker, problems)
    if problems or inter_broker is None:
        raise ConfigError(problems)
    return Listeners(bound, advertised, inter_broker, control_plane)


def _protocol_map(text: str, problems: list[str]) -> dict[str, str]:
    name = "listener.security.protocol.map"
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        listener, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or not listener:
            problems.append(invalid(name, pair, "each entry must be LISTENER:PROTOCOL"))
        elif protocol not in _PROTOCOLS:
            problems.append(invalid(name, pair, f"the protocol must be one of: {', '.join(_PROTOCOLS)}"))
        elif listener in found:
            problems.append(invalid(name, text, f"listener {listener} stands there twice"))
        else:
            found[listener] = protocol
    return found


def _parse(setting: str, text: str, protocols: Mapping[str, str], problems: list[str]) -> tuple[Listener, ...]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.fullmatch(part)
        port = int(match[5]) if match else -1
        if match is None or not match[1] or not 0 <= port <= 65535:
            problems.append(invalid(setting, part, "must be NAME://HOST:PORT with a port from 0 to 65535"))
            continue
        name = match[1].upper()
        if name not in protocols:
            problems.append(
                invalid(setting, part, f"no security protocol for {name} in listener.security.protocol.map")
            )
            continue
        if setting == "listeners" and protocols[name] not in SERVED_PROTOCOLS:
            problems.append(
                invalid(setting, part, f"{name} is a {protocols[name]} listener; tidelog serves PLAINTEXT only, so far")
            )
        found.append(Listener(name, match[2] or match[3] or match[4] or "", port, protocols[name]))
    names = [listener.name for listener in found]
    if len(set(names)) != len(names):
        problems.append(invalid(setting, text, "each listener must have a different name"))
    return tuple(found)


def _check_bound(text: str, bound: Sequence[Listener], problems: list[str]) -> None:
    if not bound and not text.strip():
        problems.append(invalid("listeners", text, "at least one listener is needed"))
    by_port: dict[int, list[str]] = {}
    for listener in bound:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener.host)
    for port, hosts in by_port.items():
        if len(hosts) > 1 and not _one_of_each_family(hosts):
            problems.append(invalid("listeners", text, f"each listener must have a different port, {port} has several"))


def _one_of_each_family(hosts: Sequence[str]) -> bool:
    """An IPv4 and an IPv6 address may share a port."""
    try:
        return len(hosts) == 2 and {ipaddress.ip_address(host).version for host in hosts} == {4, 6}
    except ValueError:
        return False


def _check_advertised(bound: Sequence[Listener], advertised: Sequence[Listener], problems: list[str]) -> None:
    names = {listener.name for listener in bound}
    for listener in advertised:
        if listener.name not in names:
            problems.append(invalid("advertised.listeners", listener, f"{listener.name} is not one of the listeners"))
        if listener.host in _NOWHERE:
            problems.append(
                invalid("advertised.listeners", listener, f"nobody can connect to {listener.host}; name a real address")
            )


def _inter_broker(
    values: Mapping[str, Any], originals: Mapping[str, str], advertised: Sequence[Listener], problems: list[str]
) -> Listener | None:
    setting = "inter.broker.listener.name"
    if setting in originals and "security.inter.broker.protocol" in originals:
        problems.append(f"Only one of {setting} and security.inter.broker.protocol should be set")
    if not values[setting]:
        setting = "security.inter.broker.protocol"
    found = _named(values[setting], advertised)
    if advertised and found is None:
        names = ", ".join(listener.name for listener in advertised)
        reason = f"brokers need an advertised listener of that name, there is: {names}"
        problems.append(invalid(setting, values[setting], reason))
    return found


def _control_plane(
    name: str | None, bound: Sequence[Listener], inter_broker: Listener | None, problems: list[str]
) -> Listener | None:
    if not name:
        return None
    found = _named(name, bound)
    if found is None:
        problems.append(invalid("control.plane.listener.name", name, "it is not one of the listeners"))
    elif inter_broker is not None and found.name == inter_broker.name:
        problems.append(invalid("control.plane.listener.name", name, "it must differ from the inter-broker listener"))
    return found


def _named(name: str, listeners: Sequence[Listener]) -> Listener | None:
    return next((listener for listener in listeners if listener.name == name.upper()), None)
