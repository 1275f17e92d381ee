"""How the cases run a tool of Kafka's bin directory: one that has to end well, and one that has to be refused."""

from __future__ import annotations

from driver_shell import Tools
from scene import Scene

from peers.tools import Ran


def run(scene: Scene[Tools], tool: str, *arguments: str, given: str = "") -> Ran:
    return scene.client.tools.run(tool, ["--bootstrap-server", scene.bootstrap, *arguments], given)


def ok(scene: Scene[Tools], tool: str, *arguments: str, given: str = "") -> str:
    """What it printed."""
    ran = run(scene, tool, *arguments, given=given)
    assert ran.status == 0, f"{ran.out}\n{ran.err}"
    return ran.out


def refused(scene: Scene[Tools], text: str, tool: str, *arguments: str) -> None:
    """It ends with status 1 and says this."""
    ran = run(scene, tool, *arguments)
    assert ran.status == 1, f"{ran.out}\n{ran.err}"
    assert text in ran.out + ran.err
