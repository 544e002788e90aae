# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit reports and prints `rode: N passed, N failed, N skipped`.

Usage: summary.py [--passed N] [--failed N] [REPORT.xml | FOLDER] ...

--passed and --failed add steps that write no report. The exit status is 1 when
anything failed or nothing ran, so that an empty report never looks like success.
"""

import argparse
import pathlib
import re
import sys
from xml.etree import ElementTree


def count(report: pathlib.Path) -> dict[str, int]:
    """Counts the test cases of one report by outcome."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            counts["skipped"] += 1
            print(f"skipped: {case.get('name')}{reason(case)}")
        elif case.get("status") == "fail":
            counts["failed"] += 1
        else:
            counts["passed"] += 1
    return counts


def reason(case: ElementTree.Element) -> str:
    """Why a test was skipped: its own words where the report holds them."""
    # CTest reports only that a pattern matched; GoogleTest's text follows "Skipped".
    said = re.search(r"Skipped\n(.+)", case.findtext("system-out", ""))
    skipped = case.find("skipped")
    message = said[1] if said else "" if skipped is None else skipped.get("message", "")
    return f" ({message})" if message else ""


def reports_in(paths: list[pathlib.Path]):
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.xml"))
        else:
            yield path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passed", type=int, default=0)
    parser.add_argument("--failed", type=int, default=0)
    parser.add_argument("reports", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()

    total = {"passed": arguments.passed, "failed": arguments.failed, "skipped": 0}
    for report in reports_in(arguments.reports):
        for outcome, number in count(report).items():
            total[outcome] += number
    print("rode: " + ", ".join(f"{number} {outcome}" for outcome, number in total.items()))
    sys.exit(1 if total["failed"] or not total["passed"] else 0)


if __name__ == "__main__":
    main()
