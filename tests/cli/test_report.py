# SPDX-License-Identifier: Apache-2.0
"""`rode report`: tables, files and exit codes of runs with known numbers."""

import csv
import json
import math
import statistics
from xml.etree import ElementTree

import pytest
from report_support import KINDS, LAYERS, curve_log, describe, write_run

FAILED, USAGE = 1, 2
LOSSES = {"rode": (2.0, 2.2, 2.1), "rode-no-ns": (3.0, 3.4, 3.5), "muon-rms": (4.0, 4.5, 4.3)}


@pytest.fixture(autouse=True)
def needs_lab(rode):
    if "no lab" in rode.call("report").stderr:
        pytest.skip("this build has no lab")


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses, 1):
            run = describe(optimizer=name, seed=seed)
            write_run(folder / f"{name}-seed{seed}", run, (loss, loss - 0.5))
    return folder


def rows_of(path):
    with path.open(newline="") as file:
        return {row["optimizer"]: row for row in csv.DictReader(file)}


def test_tables_have_the_numbers_of_the_logs(rode, runs, tmp_path):
    out = tmp_path / "out"
    done = rode.call("report", runs, "--out", out, "--base", "muon-rms")
    assert done.returncode == 0, done.stderr
    results = rows_of(out / "tables" / "small-results.csv")
    differences = rows_of(out / "tables" / "small-differences.csv")
    for name, losses in LOSSES.items():
        row = results[name]
        assert float(row["final loss"]) == pytest.approx(statistics.mean(losses))
        assert float(row["final loss sd"]) == pytest.approx(statistics.stdev(losses))
        assert float(row["best loss"]) == pytest.approx(statistics.mean(losses) - 0.5)
        perplexity = statistics.mean(math.exp(loss) for loss in losses)
        assert float(row["final perplexity"]) == pytest.approx(perplexity)
        assert row["seeds"] == "3"
        if name == "muon-rms":
            assert not differences[name]["difference to muon-rms"]
            continue
        base = LOSSES["muon-rms"]
        value = statistics.mean(losses) - statistics.mean(base)
        error = math.sqrt(statistics.variance(losses) / 3 + statistics.variance(base) / 3)
        assert float(differences[name]["difference to muon-rms"]) == pytest.approx(value)
        assert float(differences[name]["difference to muon-rms se"]) == pytest.approx(error)
    text = done.stdout
    for part in ("2.1000 ± 0.1000*", "Component study", "+0.3518", "steps: 200 here, 4000"):
        assert part in text, text
    assert "**2.1000 ± 0.1000**" in (out / "report.md").read_text()
    page = (out / "report.html").read_text()
    assert "<strong>2.1000 ± 0.1000</strong>" in page
    assert all(word not in page for word in ("src=", "href=", "url("))


def test_latex_is_balanced_and_has_the_same_rows(rode, runs, tmp_path):
    out = tmp_path / "out"
    assert rode.call("report", runs, "--out", out, "--format", "latex").returncode == 0
    files = sorted(out.glob("tables/*.tex"))
    assert {file.stem for file in files} >= {"small-results", "small-components", "small-systems"}
    for file in files:
        text = file.read_text()
        assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
        columns = len(text.partition("begin{tabular}{")[2].partition("}")[0])
        body = text.partition("\\toprule")[2].partition("\\bottomrule")[0]
        lines = [line for line in body.splitlines() if line.endswith("\\\\")]
        assert len(lines) >= 3
        for line in lines:
            assert line.replace("\\&", "").count("&") == columns - 1, line
        assert "\\mathbf{2.1000 \\pm 0.1000}" in text or file.stem == "small-systems"
    assert not list(out.glob("tables/*.csv")) and not (out / "report.html").exists()


def test_what_is_not_finished_is_counted_and_what_is_damaged_is_named(rode, runs, tmp_path):
    write_run(
        runs / "rode-seed4", describe(seed=4), (99.0, 9.0), status="diverged", what="loss is inf"
    )
    write_run(runs / "rode-seed5", describe(seed=5), (98.0, 9.0), status="unfinished")
    write_run(runs / "lost-seed1", describe(optimizer="lost"), (1, 1), status="diverged")
    write_run(runs / "cut-seed1", describe(optimizer="cut"), (0.1, 0.1), log_bytes=17)
    damaged = runs / "muon-rms-seed2" / "log.jsonl"
    damaged.write_text(damaged.read_text()[:-20] + "\n")
    done = rode.call("report", runs, "--json", "--format", "md")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (task,) = report["tasks"]
    entries = {entry["name"]: entry for entry in task["optimizers"]}
    assert entries["rode"]["final_loss"]["mean"] == pytest.approx(2.1)
    rode_entry = entries["rode"]
    assert (rode_entry["seeds"], rode_entry["diverged"], rode_entry["unfinished"]) == (5, 1, 1)
    assert entries["muon-rms"]["final_loss"]["mean"] == pytest.approx(4.15)
    assert "final_loss" not in entries["lost"] and "cut" not in entries
    left_out = {entry["folder"].rpartition("/")[2] for entry in report["left_out"]}
    assert left_out == {"cut-seed1", "muon-rms-seed2"}
    assert done.stderr.count("left out") == 2
    text = (runs / "report.md").read_text()
    assert "| lost | diverged |" in text and "5, 1 diverged, 1 unfinished" in text
    assert "rode seed 4: diverged at step 200 (loss is inf)" in text


def test_several_tasks_and_rates_are_told_apart(rode, runs, tmp_path):
    for lr, loss in ((0.002, 1.5), (0.004, 1.9)):
        run = describe(optimizer="rode", seed=1, lr=lr)
        write_run(runs / f"rate-{lr}", run, (loss, loss))
    other = tmp_path / "other"
    for name, loss in (("rode", 7.0), ("muon-rms", 6.0)):
        write_run(other / name, describe("large", name), (loss, loss), parameters=10**9)
    out = tmp_path / "out"
    assert rode.call("report", runs, other).returncode == USAGE  # where to write?
    done = rode.call("report", runs, other, "--out", out)
    assert done.returncode == 0, done.stderr
    main = rows_of(out / "tables" / "main_results.csv")
    assert float(main["muon-rms"]["large: final loss"]) == 6.0
    assert float(main["muon-rms"]["small: final loss"]) == pytest.approx(4.2667, abs=1e-4)
    assert "**6.0000**" in (out / "report.md").read_text()
    rates = rows_of(out / "tables" / "small-rates.csv")
    assert rates["rode"]["options"] == "lr=0.004"  # the last: they are in order
    svg = (out / "figures" / "small" / "rates.svg").read_text()
    assert svg.count("<circle") == 3
    assert not (out / "figures" / "large" / "rates.svg").exists()


def test_every_matrix_is_drawn(rode, tmp_path):
    for number, name in enumerate(("adamw", "rode")):
        log = curve_log(number, 1, diverges=False, angles=name == "rode")
        write_run(tmp_path / "runs" / name, describe(optimizer=name), log=log)
    done = rode.call("report", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    figures = tmp_path / "runs" / "figures" / "small"
    names = {file.stem for file in figures.glob("*.svg")}
    grids = {"radius-rode", "radius-adamw", "angle-rode"}
    assert names >= grids | {"matrix_radius", "matrix_angle", "update_norm"}
    assert "angle-adamw" not in names and "matrix_damping" not in names
    for name in grids:
        text = (figures / f"{name}.svg").read_text()
        ElementTree.fromstring(text)
        assert text.count("<path") == len(KINDS) * LAYERS and text.count(">layer 3<") == 1
        assert all(kind.rpartition(".")[2] in text for kind in KINDS)
    for axis in ("tokens", "seconds"):
        assert f"validation_loss_by_{axis}" in names and f"training_loss_by_{axis}" in names


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--base", "lion"), USAGE, "rode-no-ns"),
        (("--format", "pdf"), USAGE, "pdf"),
    ],
)
def test_what_is_not_there_is_wrong_usage(rode, runs, words, code, message):
    done = rode.call("report", runs, *words)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert not (runs / "report.json").exists()


def test_folders_without_runs_are_refused(rode, tmp_path):
    done = rode.call("report", tmp_path / "nowhere")
    assert done.returncode == USAGE and "is not a folder" in done.stderr
    (tmp_path / "empty").mkdir()
    done = rode.call("report", tmp_path / "empty")
    assert done.returncode == FAILED and "no run was found" in done.stderr
    assert rode.call("report").returncode == USAGE
    text = rode.call("report", "--help").stdout
    assert "rode report runs/" in text and "Exit code" in text
