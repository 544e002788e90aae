# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit reports and prints `rode: N passed, N failed, N skipped`.

Usage: summary.py [--passed N] [--failed N] [REPORT.xml | FOLDER] ...

--passed and --failed add steps that write no report. The exit status is 1 when
anything failed or nothing ran, so that an empty report never looks like success.
The tests of a program NAME that CTest ran as a whole are in gtest/NAME.xml beside its report.
"""

import argparse
import pathlib
import re
import sys
from xml.etree import ElementTree


def outcome(case: ElementTree.Element) -> str:
    """passed, failed or skipped: one test case of pytest's, CTest's or GoogleTest's."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "failed" if case.get("status") == "fail" else "passed"


def count(report: pathlib.Path) -> dict[str, int]:
    """Counts the test cases of one report by outcome; prints those that were skipped."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(report).iter("testcase"):
        # One case of CTest's may be a whole program, whose own report has the tests in it.
        program = report.parent / "gtest" / f"{case.get('name')}.xml"
        if program.is_file():
            inside = count(program)
            for each, number in inside.items():
                counts[each] += number
            # It failed after its tests, as a sanitizer's report at the end does.
            if outcome(case) == "failed" and not inside["failed"]:
                counts["failed"] += 1
                print(f"failed: {case.get('name')} (outside of its tests)")
            continue
        counts[outcome(case)] += 1
        if outcome(case) == "skipped":
            print(f"skipped: {name(case)}{reason(case)}")
    return counts


def name(case: ElementTree.Element) -> str:
    """Suite and test where GoogleTest wrote the report, else the test alone."""
    gtest = case.get("result") is not None
    return f"{case.get('classname')}.{case.get('name')}" if gtest else str(case.get("name"))


def reason(case: ElementTree.Element) -> str:
    """Why a test was skipped: its own words where the report holds them."""
    # CTest reports only that it was; GoogleTest's text follows "Skipped", or file and line.
    said = re.search(r"Skipped\n(.+)", case.findtext("system-out", ""))
    skipped = case.find("skipped")
    message = said[1] if said else "" if skipped is None else skipped.get("message", "")
    message = re.sub(r"^\S+:\d+\s+", "", message).strip()
    return f" ({message})" if message else ""


def reports_in(paths: list[pathlib.Path]):
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.xml"))
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
        for each, number in count(report).items():
            total[each] += number
    print("rode: " + ", ".join(f"{number} {each}" for each, number in total.items()))
    sys.exit(1 if total["failed"] or not total["passed"] else 0)


if __name__ == "__main__":
    main()
