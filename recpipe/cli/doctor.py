"""``recpipe doctor``: says what is installed, what works here and what does not, with the cure.

Standard library only, and what could crash runs in a process of its own: this command has to work where nothing else does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from recpipe.cli.doctor_checks import Finding, environment_findings, live_findings, package_findings
from recpipe.errors import ConfigError

CONFIG = None
HELP = "Check this installation; names what does not work here, with the cure."


def main(arguments: Sequence[str]) -> int:
    """Runs all checks and prints them. Returns 1 if something essential fails."""
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"{arguments[0]}: recpipe doctor takes no settings")
    if arguments:
        print(f"recpipe doctor: {HELP}\n\nusage: recpipe doctor\n\nExit code 1 if something essential does not work.")
        return 0
    failed = 0
    for title, check in (
        ("This machine", environment_findings),
        ("Installed", package_findings),
        ("Tried out", live_findings),
    ):
        print(title)
        for finding in check():
            print(_line(finding), flush=True)
            failed += finding.status == "fail"
    print(
        f"{failed} essential {'check' if failed == 1 else 'checks'} failed"
        if failed
        else "All that is essential works."
    )
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    mark = {"ok": "ok  ", "note": "note", "fail": "FAIL"}[finding.status]
    if sys.stdout.isatty():
        color = {"ok": 32, "note": 33, "fail": 31}[finding.status]
        mark = f"\x1b[{color}m{mark}\x1b[0m"
    cure = f"\n        cure: {finding.cure}" if finding.cure else ""
    return f"  {mark}  {finding.text}{cure}"
