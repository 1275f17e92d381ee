"""Members in processes of their own, which can crash: started by name, they tell of their first partition and go on.

Run as a program, this is such a member of a Python client.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict

from driver import DEADLINE_S
from group_driver import Doomed, GroupDriver, Joining

from peers import home
from peers.shell import die_with_parent

_HAS_A_SHARE = "has a share"


class DoomedProcess(Doomed):
    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(home.CHECKOUT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        self._has_a_share = threading.Event()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if _HAS_A_SHARE in line:
                self._has_a_share.set()

    def wait_for_share(self) -> None:
        assert self._has_a_share.wait(DEADLINE_S), "the member that is to crash was assigned nothing"

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def doomed_python(driver: str, bootstrap: str, joining: Joining) -> Doomed:
    """The driver as module:class."""
    return DoomedProcess([sys.executable, __file__, driver, bootstrap, json.dumps(asdict(joining))])


def main(driver: str, bootstrap: str, joining: str) -> None:
    module, _, name = driver.partition(":")
    client: GroupDriver = getattr(importlib.import_module(module), name)()
    client.bootstrap = bootstrap
    given = json.loads(joining)
    with client.join(Joining(**{**given, "topics": tuple(given["topics"])})) as member:
        member.wait_for(lambda: bool(member.share()), "wants any partition")
        print(_HAS_A_SHARE, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
