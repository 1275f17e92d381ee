"""Writes the locks: every package that development or a tool beside us needs, pinned, with hashes and without hosts."""

import subprocess
import sys
from pathlib import Path

_TOOLS = Path(__file__).resolve().parent / "python"
_OPTIONS = [
    "--python-version", "3.11",
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--upgrade",
    "--quiet",
]  # fmt: skip


def _lock(wanted: str, lock: str, *options: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", wanted, *options, *_OPTIONS, "--output-file", lock]
    subprocess.run(command, check=True)


def main() -> int:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    try:
        _lock("pyproject.toml", "requirements.lock", "--extra", "dev", "--extra", "spark")
        for wanted in sorted(_TOOLS.glob("*/requirements.in")):
            _lock(str(wanted), str(wanted.with_suffix(".lock")))
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
