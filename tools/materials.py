"""`make licences`: every installed distribution with its version and licence, as a CycloneDX bill of materials."""

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any

__all__ = ["bill", "main"]


def _licence(found: Distribution) -> str:
    about: Any = found.metadata
    classes = [c.split(" :: ")[-1] for c in about.get_all("Classifier", []) if c.startswith("License :: ")]
    text = (about.get("License") or "").strip().splitlines()[:1]
    return about.get("License-Expression") or "; ".join(classes) or (text[0] if text else "unknown")


def bill() -> dict[str, object]:
    """The bill, sorted by name."""
    found = sorted({each.metadata["Name"].lower(): each for each in distributions()}.items())
    components = [
        {
            "type": "library",
            "name": name,
            "version": each.version,
            "purl": f"pkg:pypi/{name.replace('_', '-')}@{each.version}",
            "licenses": [{"license": {"name": _licence(each)[:100]}}],
        }
        for name, each in found
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def main() -> int:
    json.dump(bill(), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
