#!/usr/bin/env bash
# Writes requirements.txt anew from pyproject.toml and constraints.txt: every package with its hashes, torch and the CUDA
# libraries it brings excepted, whose build depends on the machine. Needs `uv` on the path.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml - --extra dev --constraint constraints.txt --universal --python-version 3.11 \
  --generate-hashes --no-header --no-annotate --quiet --no-emit-package torch --output-file requirements.txt <<< $'hatchling\neditables'
python3 - <<'PY'
import re
from pathlib import Path

path = Path("requirements.txt")
entries = re.split(r"\n(?=\S)", path.read_text())
kept = [entry for entry in entries if not re.match(r"(nvidia-|cuda-|triton)", entry)]
path.write_text("# Written by tools/pin.sh; torch is installed before it, by the version in constraints.txt.\n" + "\n".join(kept))
PY
