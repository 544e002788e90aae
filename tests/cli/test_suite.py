# SPDX-License-Identifier: Apache-2.0
"""What the test suite says of itself: programs that show nothing, and the count of tools/summary.py."""

import subprocess
import sys

import pytest

import harness

FAILED, USAGE, ALL_SKIPPED = 1, 2, 77
SUMMARY = harness.ROOT / "tools" / "summary.py"


def run(*command):
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=harness.TIMEOUT_S)


@pytest.fixture
def api_tests(binary):
    program = binary.parent / "rode_api_tests"
    if not program.is_file():
        pytest.skip(f"no program at {program}: built with RODE_BUILD_TESTS")
    return program


def test_a_program_that_skips_everything_says_why_and_is_no_success(api_tests):
    done = run(api_tests, "--gtest_filter=*/Deferred.*")
    assert done.returncode == ALL_SKIPPED
    said = done.stdout.splitlines()[-2:]
    assert "skipped: on CUDA only: a CPU step is complete when it returns" in said[0]
    assert said[1].startswith("every test was skipped")


def test_a_program_without_a_device_skips_with_the_reason(api_tests):
    done = run(api_tests, "--backend", "cuda", "--gtest_filter=Construction.*")
    if "no usable cuda device" not in done.stdout:
        pytest.skip("there is a GPU here")
    assert done.returncode == ALL_SKIPPED, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2].split(" skipped: ")[1]


@pytest.mark.parametrize("words", [["--gtest_filter=NoSuchTest.*"], ["--backend", "gpu"]])
def test_a_program_with_nothing_to_run_is_a_usage_error(api_tests, words):
    done = run(api_tests, *words)
    assert done.returncode == USAGE
    assert words[-1] in done.stderr


# ---- tools/summary.py ---------------------------------------------------------------------------

# CTest's own words for a program that passed, failed or ended with the status of a skip.
CTEST = {
    "run": '<testcase name="{0}" status="run"><system-out/></testcase>',
    "fail": '<testcase name="{0}" status="fail"><failure message=""/></testcase>',
    "notrun": '<testcase name="{0}" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>',
}
PASSED = '<testcase name="A" classname="S" status="run" result="completed"/>'
WRONG = '<testcase name="B" classname="S" status="run" result="completed"><failure/></testcase>'
SKIPPED = (
    '<testcase name="C" classname="S" status="run" result="skipped">'
    '<skipped message="a/b_test.cpp:7&#x0A;no GPU here"/></testcase>'
)


def summary(folder, programs):
    """Counts a CTest report of the given programs: name -> (CTest's verdict, its own tests)."""
    (folder / "gtest").mkdir()
    cases = "".join(CTEST[verdict].format(name) for name, (verdict, _) in programs.items())
    (folder / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
    for name, (_, tests) in programs.items():
        if tests is not None:
            report = f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>"
            (folder / "gtest" / f"{name}.xml").write_text(report)
    return run(sys.executable, SUMMARY, folder)


@pytest.mark.parametrize(
    "programs,counted,code",
    [
        ({"p": ("run", [PASSED, PASSED]), "q": ("run", None)}, "3 passed, 0 failed, 0 skipped", 0),
        ({"p": ("run", [PASSED, SKIPPED])}, "1 passed, 0 failed, 1 skipped", 0),
        ({"p": ("fail", [PASSED, WRONG])}, "1 passed, 1 failed, 0 skipped", FAILED),
        # After its tests, or before any of them.
        ({"p": ("fail", [PASSED, PASSED])}, "2 passed, 1 failed, 0 skipped", FAILED),
        ({"p": ("fail", None), "q": ("run", None)}, "1 passed, 1 failed, 0 skipped", FAILED),
        ({"p": ("notrun", [SKIPPED, SKIPPED])}, "0 passed, 0 failed, 2 skipped", FAILED),
    ],
    ids=["whole", "skip", "failure", "late", "crash", "nothing"],
)
def test_the_tests_of_whole_programs_are_counted(tmp_path, programs, counted, code):
    done = summary(tmp_path, programs)
    assert done.stdout.splitlines()[-1] == f"rode: {counted}"
    assert done.returncode == code


def test_a_skip_is_listed_with_its_reason(tmp_path):
    done = summary(tmp_path, {"p": ("run", [PASSED, SKIPPED])})
    assert done.stdout.splitlines()[0] == "skipped: S.C (no GPU here)"
