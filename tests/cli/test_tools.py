# SPDX-License-Identifier: Apache-2.0
"""`rode optimizers --name`, `rode bench step --peers`, and mistyped command lines."""

import json
import os
import subprocess
import sys

import pytest

import harness

FAILED, USAGE = 1, 2
PEERS = harness.ROOT / "bench" / "peers" / "torch_step.py"


def test_optimizers_name_explains_every_option(rode):
    listing = rode.call("optimizers", "--name", "muon", "--json")
    assert listing.returncode == 0, listing.stderr
    (entry,) = json.loads(listing.stdout)["optimizers"]
    assert entry["name"] == "muon"
    text = rode.call("optimizers", "--name", "muon").stdout
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert len(entry["options"]) > 10
    for option in entry["options"]:
        assert option["help"] and option["help"] in lines[option["key"]], option["key"]
    assert "precondition_frequency" not in text


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["optimizers", "--name", "muno"], ["'muno'", "'muon'"]),
        (["optimizers", "--name", ""], ["''"]),
        (["optimizers", "--shapes", ""], ["--shapes ''"]),
        (["bench", "step", "--optimizer", "rode", "--shapes", ""], ["--shapes ''"]),
        (["optimizers", "--shapes", "16777217x2"], ["16777217", "16777216"]),
        (["optimizers", "--shapes", "2x99999999999999999999"], ["99999999999", "16777216"]),
        (["optimizers", "--shapes", "2x2x100001"], ["100001", "100000"]),
        (["optimizers", "--shapes", "16777216x16777216x100000"], ["1099511627776"]),
        (["optimizers", "--shapes", "1048576x524288,1048576x524289"], ["1099511627776"]),
        (["step", "--foo"], ["'--foo'"]),
        (["step", "--step", "3"], ["'--step'", "'--steps'"]),
        (["step", "--optimiser=rode"], ["'--optimiser'", "'--optimizer'"]),
        (["step", "--optimizer", "rode", "stray"], ["'stray'"]),
        (["stepp"], ["'stepp'", "'step'"]),
        (["--versoin"], ["'--versoin'", "'--version'"]),
        (["bench", "setp"], ["'setp'", "'step'"]),
        (["bench", "step", "--repaet", "3"], ["'--repaet'", "'--repeat'"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_wrong_command_lines_name_what_is_wrong(rode, arguments, words):
    done = rode.call(*arguments)
    assert done.returncode == USAGE and done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("rode: hint:")


def test_shapes_up_to_the_limits_are_accepted(rode):
    for shapes in ("16777216x1", "2x2x100000", "1048576x1048576"):
        done = rode.call("optimizers", "--shapes", shapes, "--name", "rode", "--json")
        assert done.returncode == 0, done.stderr


def bench_peers(rode, *arguments, python=sys.executable):
    return subprocess.run(
        [
            str(rode.binary),
            *("bench", "step", "--shapes", "24x16x2,16x24", "--optimizer", "rode"),
            *("--threads", "1", "--repeat", "2", "--warmup", "1", "--json"),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=harness.TIMEOUT_S,
        env={**os.environ, "RODE_PYTHON": python},
    )


def test_bench_runs_the_chosen_peers(rode):
    done = bench_peers(rode, "--peers", PEERS, "--peers-only", "rode_loop,muon_fp32_loop")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    peers = report["peers"]
    assert set(peers) == {"torch", "threads", "rode_loop", "muon_fp32_loop"}
    assert peers["threads"] == report["threads"] == 1
    for name in ("rode_loop", "muon_fp32_loop"):
        assert peers[name]["median_ms"] > 0 and len(peers[name]["times_ms"]) == 2


def test_bench_reports_peers_that_fail(rode):
    unknown = bench_peers(rode, "--peers", PEERS, "--peers-only", "nobody")
    assert unknown.returncode == FAILED and unknown.stdout == ""
    assert "nobody" in unknown.stderr and "RODE_PYTHON" in unknown.stderr
    absent = bench_peers(rode, "--peers", PEERS, python="/nonexistent/python")
    assert absent.returncode == FAILED and "/nonexistent/python" in absent.stderr
    alone = bench_peers(rode, "--peers-only", "rode_loop")
    assert alone.returncode == USAGE and "--peers" in alone.stderr
