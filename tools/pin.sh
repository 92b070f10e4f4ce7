#!/usr/bin/env bash
# Writes requirements.txt and requirements-ray.txt anew from pyproject.toml and constraints.txt: every package with its
# hashes, torch and the CUDA libraries it brings excepted, whose build depends on the machine. The second file holds what
# the extras `ray` and `sweep` need beside the first. Needs `uv` on the path.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # file, then more options
  uv pip compile pyproject.toml - --extra dev --constraint constraints.txt --universal --python-version 3.11 \
    --generate-hashes --no-header --no-annotate --quiet --no-emit-package torch --output-file "$@" <<< $'hatchling\neditables'
}
compile requirements.txt
compile requirements-ray.txt --extra ray --extra sweep --constraint requirements.txt
python3 - <<'PY'
import re
from pathlib import Path

plain, ray = Path("requirements.txt"), Path("requirements-ray.txt")


def entries(path: Path) -> list[str]:
    return [each for each in re.split(r"\n(?=\S)", path.read_text()) if not re.match(r"(nvidia-|cuda-|triton)", each)]


known = entries(plain)
names = {entry.split("==")[0] for entry in known}
more = [entry for entry in entries(ray) if entry.split("==")[0] not in names]
head = "# Written by tools/pin.sh; torch is installed before it, by the version in constraints.txt.\n"
plain.write_text(head + "\n".join(known))
ray.write_text("# Written by tools/pin.sh: what the extras ray and sweep need beside requirements.txt.\n" + "\n".join(more) + "\n")
PY
