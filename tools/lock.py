"""Writes requirements.lock: every package that development needs, pinned, with hashes and without hosts."""

import subprocess
import sys

COMMAND = [
    "uv", "pip", "compile", "pyproject.toml",
    "--extra", "dev",
    "--extra", "spark",
    "--python-version", "3.11",
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--upgrade",
    "--quiet",
    "--output-file", "requirements.lock",
]  # fmt: skip


def main() -> int:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    return subprocess.run([sys.executable, "-m", *COMMAND], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
