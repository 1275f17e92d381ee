"""The `tidelog` command, also as `python -m tidelog`. Ctrl-C is quiet from the first moment."""

from __future__ import annotations

import signal


def start() -> None:
    """Run the command line.

    While modules are imported, an interrupt ends the process at once, as it ends programs that are not Python's: an
    exception in the middle of an import would be shown with a traceback. A command that has something to put in order
    takes care of the signal itself. A signal that the shell has this process ignore stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidelog.cli.main import main

    main(prog_name="tidelog")


if __name__ == "__main__":
    start()
