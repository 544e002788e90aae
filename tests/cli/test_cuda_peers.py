# SPDX-License-Identifier: Apache-2.0
"""The peers of `rode bench step --backend cuda` step like the oracles; without CUDA it says so."""

import json
import subprocess
import sys

import pytest
import torch

from compare import BF16_PRODUCTS_TOL, assert_weight, follow
from harness import ROOT
from problems import problem

STEPS = 5
SHAPES = [(48, 32), (32, 48), (40, 40), (48, 32)]
SCRIPT = ROOT / "bench" / "peers" / "torch_cuda_step.py"
FAILED, USAGE = 1, 2
# The peer, the optimizer whose defaults it has, what differs, the bound (None: fp32's own).
PEERS = {
    "torch_muon": ("muon-rms", {}, BF16_PRODUCTS_TOL),
    "rode_loop": ("rode-paper", {}, BF16_PRODUCTS_TOL),
    "rode_batched": ("rode-paper", {}, BF16_PRODUCTS_TOL),
}
ADAMW = {"lr": 2.9e-3, "weight_decay": 9e-4, "betas": (0.9, 0.95)}


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import torch_cuda_step
    finally:
        sys.path.pop(0)
    return torch_cuda_step


def stepped(make, matrices, rest):
    problems = matrices + rest
    weights = [torch.nn.Parameter(torch.tensor(p.weight)) for p in problems]
    optimizer = make(weights[: len(matrices)], weights[len(matrices) :])
    for k in range(STEPS):
        for weight, p in zip(weights, problems):
            weight.grad = torch.tensor(p.grads[k])
        optimizer.step()
    return weights


def test_every_peer_is_compared(script):
    assert set(script.PEERS) == {"torch_adamw", *PEERS}


@pytest.mark.parametrize("peer", list(PEERS))
def test_peers_step_matrices_like_the_oracle(script, peer):
    optimizer, options, tol = PEERS[peer]
    problems = [problem(shape, STEPS, seed) for seed, shape in enumerate(SHAPES, 1)]
    for p, weight in zip(problems, stepped(script.PEERS[peer], problems, [])):
        assert_weight(weight, follow(optimizer, p, options), tol, f"{peer} {p.weight.shape}")


@pytest.mark.parametrize("peer", ["torch_adamw", *PEERS])
def test_peers_step_the_rest_with_adamw(script, peer):
    matrix, bias = problem((12, 8), STEPS, 1), problem((33,), STEPS, 2, weight_scale=1.0)
    weights = stepped(script.PEERS[peer], [matrix], [bias])
    assert_weight(weights[1], follow("adamw", bias, ADAMW, matrix=True))
    if peer == "torch_adamw":
        assert_weight(weights[0], follow("adamw", matrix, ADAMW, matrix=True))


def test_script_reports_every_peer_and_the_ceilings():
    shapes = [("conv", [6, 5, 3, 3], "matrix"), ("w", [8, 4], "matrix"), ("bias", [6], "rest")]
    description = {"parameters": [dict(zip(("name", "shape", "treatment"), s)) for s in shapes]}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--shapes-json", "-", "--device", "cpu", "--repeat", "3"],
        input=json.dumps(description),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["matmul_tflops"] > 0 and report["copy_tbps"] > 0
    for name in ("torch_adamw", *PEERS):
        assert report[name]["median_ms"] > 0 and len(report[name]["times_ms"]) == 3


def test_bench_on_cuda_checks_its_arguments_first(rode):
    bench = ("bench", "step", "--backend", "cuda")
    for arguments in (
        ["--shapes", "64x32"],
        ["--table", "--shapes", "64x32"],
        ["--shapes", "64x32", "--optimizer", "nobody"],
        ["--shapes", "64by32", "--optimizer", "rode"],
    ):
        assert rode.call(*bench, *arguments).returncode == USAGE, arguments
    assert rode.call("bench", "step", "--table").returncode == USAGE


def test_bench_without_cuda_says_so(rode):
    bench = ("bench", "step", "--backend", "cuda")
    small = ("--shapes", "64x32", "--optimizer", "rode", "--repeat", "1", "--warmup", "0")
    if rode.call(*bench, *small).returncode == 0:
        pytest.skip("there is a device")
    for arguments in (small, ("--table",)):
        done = rode.call(*bench, *arguments)
        assert done.returncode == FAILED and done.stdout == ""
        line = done.stderr.splitlines()[0]
        assert line.startswith("rode: error: [cuda]") and "CUDA" in line, done.stderr
