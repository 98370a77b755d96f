"""Checks workflows, Dependabot's settings, forms and Compose files against the schemas that come with check-jsonschema.

python -m scripts.check_schemas
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.dependabot": ".github/dependabot.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
    "vendor.compose-spec": "deploy/compose*.yaml",
}
"""Name of a schema → the files that it is for."""


def main() -> int:
    """Return 1 if a file does not fit its schema; what is wrong is printed."""
    failed = False
    for schema, pattern in SCHEMAS.items():
        files = sorted(ROOT.glob(pattern))
        command = [sys.executable, "-m", "check_jsonschema", "--quiet", "--builtin-schema", schema, *map(str, files)]
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
