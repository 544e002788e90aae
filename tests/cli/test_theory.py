# SPDX-License-Identifier: Apache-2.0
"""`rode theory`: the table, JSON, exit codes, and the folder of a run."""

import json
import resource
import subprocess
from pathlib import Path

import harness
import pytest
from train_support import call_here, train_words

ROOT = Path(__file__).resolve().parents[2]
DONE, FAILED, USAGE = 0, 1, 2
KEYS = {"name", "label", "what", "measured", "side", "bound", "holds", "holds_as_printed"}
MATRIX = {
    "rho": 2.0,
    "rho_next": 1.95,
    "s": 0.5,
    "q": 3.0,
    "theta": 0.03,
    "gamma": 1.0,
    "m_norm": 10.0,
}


def theory(*words):
    binary = harness.step_binary_path()
    done = subprocess.run(
        [str(binary), "theory", *map(str, words)], capture_output=True, text=True, timeout=120
    )
    if "no lab" in done.stderr:
        pytest.skip("this build has no lab")
    return done


@pytest.fixture(scope="module")
def report():
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = theory("--json")
    assert done.returncode == DONE, done.stdout + done.stderr
    # 3 s on one core: of the processor, because a busy machine has a slow clock.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin < 30
    return json.loads(done.stdout)


def written_run(folder, **changes):
    """A run whose log has one line of diagnostics; without checksums, which is told as a note."""
    folder.mkdir()
    options = {"momentum": "0.9", "radius": "learned", "scale": "kernel"}
    run = {"optimizer": "mine", "method": "rode", "options": options}
    (folder / "run.json").write_text(json.dumps(run))
    line = {"kind": "step", "step": 9, "lr": 0.01, "lr_rho": 0.1}
    line["matrices"] = {"w": {**MATRIX, **changes}}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_every_check_holds_and_names_its_equation(report):
    assert report["all_hold"] is True
    for check in report["checks"]:
        assert check.keys() >= KEYS and check["holds"] is True, check
        below = check["measured"] <= check["bound"]
        assert below == (check["side"] == "<=") or check["measured"] == check["bound"], check
    symbols = {(constant["symbol"], constant["of"]) for constant in report["constants"]}
    for symbol in ("c_NS", "q_min", "q_max", "theta_max"):
        assert {(symbol, "guarded"), (symbol, "every")} <= symbols


def test_what_does_not_hold_as_printed_is_named(report):
    differing = {c["name"] for c in report["checks"] if not c["holds_as_printed"]}
    assert {"regularity", "kinetic", "momentum_weights", "theorem_1_angle"} <= differing
    assert all(c["note"] for c in report["checks"] if not c["holds_as_printed"])


def test_the_page_explains_every_check(report):
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    for check in report["checks"]:
        assert f"`{check['name']}`" in page, check["name"]
        assert f"`{check['label'].split(' (')[0]}`" in page, check["label"]


def test_the_table_has_the_figures_of_json_and_they_depend_on_the_seed_alone(report):
    done = theory("--seed", "1")
    assert done.returncode == DONE and done.stderr == ""
    lines = done.stdout.splitlines()
    rows = [line for line in lines if line.endswith(tuple(c["what"] for c in report["checks"]))]
    assert len(rows) >= len(report["checks"])
    for check in report["checks"]:
        figure = f"{check['measured']:.4g}"
        assert any(
            line.startswith(check["name"]) and figure in line and " holds " in line for line in rows
        ), check
    count = len(report["checks"])
    assert lines[-1] == f"{count} of {count} checks hold"
    assert "Statements that do not hold as printed in the paper:" in lines


@pytest.mark.parametrize(
    "words,message",
    [
        (["--seed", "-1"], "expected a whole number"),
        (["--seed", "1.5"], "expected a whole number"),
        (["--sed", "1"], "did you mean '--seed'"),
        (["--run", "x", "--seed", "1"], "--run"),
        (["extra"], "unexpected argument 'extra'"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_wrong_usage(words, message):
    done = theory(*words)
    assert done.returncode == USAGE and message in done.stderr, done.stderr
    assert done.stdout == ""


def test_help_has_an_example_and_the_exit_codes():
    done = theory("--help")
    assert done.returncode == DONE
    assert "rode theory --run" in done.stdout and "Exit code" in done.stdout


def test_a_log_that_fits_holds_and_one_that_does_not_fails(tmp_path):
    done = theory("--run", written_run(tmp_path / "right"), "--json")
    assert done.returncode == DONE, done.stderr
    assert "checksum" in done.stderr and "c_NS is not measured" in done.stderr
    constants = {c["symbol"]: c["value"] for c in json.loads(done.stdout)["constants"]}
    assert constants["q_max"] == 3 and constants["theta_max"] == pytest.approx(0.03)
    done = theory("--run", written_run(tmp_path / "wrong", theta=0.04))
    assert done.returncode == FAILED
    assert "run_angle" in done.stdout and " fails " in done.stdout
    assert "1 of 6 checks fail" in done.stderr


def test_a_folder_that_is_no_run_is_named(tmp_path):
    done = theory("--run", tmp_path / "nowhere")
    assert done.returncode == FAILED and "nowhere" in done.stderr, done.stderr


def test_constants_of_a_run_that_was_trained(rode, needs_training, task, tmp_path):
    published = 'radius = "learned"\nscale = "kernel"'
    task.write_text(task.read_text().replace('radius = "adaptive"', published))
    out = tmp_path / "run"
    words = train_words(task, out, "--steps", 40, "--quiet", "--device", "cpu")
    assert call_here(rode, *words).returncode == DONE
    done = theory("--run", out, "--json")
    assert done.returncode == DONE, done.stdout + done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    names = {check["name"] for check in found["checks"]}
    assert {"run_angle", "run_radius", "run_alignment", "run_largest_angle"} <= names
    constants = {c["symbol"]: c["value"] for c in found["constants"]}
    assert 0.3 < constants["c_NS"] <= 1 and 0 < constants["q_min"] <= constants["q_max"]
