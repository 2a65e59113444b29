"""Check the installed packages for known vulnerabilities with pip-audit, in its own environment.

The exit code is 1 if a package has a known vulnerability. If no vulnerability service responds, the script prints a
message, and fails only with --required.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--required", action="store_true", help="fail if no vulnerability service responds")
    parser.add_argument("--report", type=Path, help="read the JSON output of pip-audit from this file")
    given = parser.parse_args()
    report = json.loads(given.report.read_text()) if given.report else run_pip_audit()
    return print_report(report, required=given.required)


def run_pip_audit() -> dict[str, Any]:
    """Return the report of pip-audit for this environment, or {} if it fails."""
    with TemporaryDirectory() as folder:
        own, installed = Path(folder) / "venv", Path(folder) / "installed"
        venv.create(own, with_pip=True)
        pip = [str(own / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet", "pip-audit>=2.10,<3"]
        if subprocess.run(pip).returncode:
            return {}
        freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
        installed.write_bytes(subprocess.run(freeze, check=True, stdout=subprocess.PIPE).stdout)
        audit = [str(own / "bin" / "pip-audit"), "--no-deps", "--disable-pip", "--requirement", str(installed)]
        found = subprocess.run([*audit, "--format=json", "--progress-spinner=off"], stdout=subprocess.PIPE)
        return json.loads(found.stdout) if found.stdout else {}


def print_report(report: dict[str, Any], *, required: bool) -> int:
    """Print a report; return the exit code."""
    packages = report.get("dependencies", [])
    audited = [each for each in packages if "vulns" in each]
    for each in audited:
        for known in each["vulns"]:
            fixed = ", ".join(known.get("fix_versions", ())) or "no version yet"
            print(f"{each['name']} {each['version']}: {known['id']}, fixed by {fixed}")
    if not audited:
        print("no vulnerability service responded: nothing was audited", file=sys.stderr)
        return int(required)
    print(f"{len(audited)} of {len(packages)} packages were audited", file=sys.stderr)
    return int(any(each["vulns"] for each in audited) or (required and len(audited) < len(packages)))


if __name__ == "__main__":
    sys.exit(main())
