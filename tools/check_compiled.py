"""Fails where a C compiler is present and the compiled modules are not loaded."""

import importlib
import shutil
import sys

MODULES = ["tidelog.records.kernel", "tidelog.wire.engine"]


def main() -> int:
    slow = [name for name in MODULES if str(importlib.import_module(name).__file__).endswith(".py")]
    if not slow:
        print("compiled: " + ", ".join(MODULES))
        return 0
    if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        print("a C compiler is here, yet these run as plain Python: " + ", ".join(slow), file=sys.stderr)
        return 1
    print("no C compiler: plain Python for " + ", ".join(slow))
    return 0


if __name__ == "__main__":
    sys.exit(main())
