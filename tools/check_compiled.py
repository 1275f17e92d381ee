"""Fails where a C compiler is present and the compiled modules are not loaded."""

import importlib
import shutil
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> int:
    modules = tomllib.loads(PROJECT.read_text())["tool"]["tidelog"]["compiled"]
    slow = [name for name in modules if str(importlib.import_module(name).__file__).endswith(".py")]
    if not slow:
        print("compiled: " + ", ".join(modules))
        return 0
    if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        print("a C compiler is here, yet these run as plain Python: " + ", ".join(slow), file=sys.stderr)
        return 1
    print("no C compiler: plain Python for " + ", ".join(slow))
    return 0


if __name__ == "__main__":
    sys.exit(main())
