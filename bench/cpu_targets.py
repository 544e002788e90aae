#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the CPU targets in one run and keeps the result under bench/results.

On the shapes of a model: the share of RODE's step that the BLAS alone would need, and Muon RMS
against torch.optim.Muon (bf16 products) and against the same loop with fp32 torch.mm.

    bench/cpu_targets.py [--rode build/bin/rode] [--shapes qwen2-114m] [--threads 0] [--repeat 5]
                         [--out bench/results/cpu_qwen2-114m.json]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench/peers/torch_step.py"


def bench(options, optimizer, *arguments):
    command = [options.rode, "bench", "step", "--shapes", options.shapes, "--json"]
    command += ["--threads", str(options.threads), "--repeat", str(options.repeat)]
    command += ["--optimizer", optimizer, *arguments]
    print("$", " ".join(map(str, command)), flush=True)
    # The peers run in the Python that runs this script.
    environment = {**os.environ, "RODE_PYTHON": sys.executable}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout)


def commit():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rode", default=str(ROOT / "build/bin/rode"))
    parser.add_argument("--shapes", default="qwen2-114m")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    out = pathlib.Path(options.out or ROOT / f"bench/results/cpu_{options.shapes}.json")

    rode = bench(options, "rode")
    bf16 = bench(
        options,
        "muon-rms",
        "--set",
        "ns_dtype=bf16",
        "--peers",
        PEERS,
        "--peers-only",
        "torch_muon",
    )
    fp32 = bench(options, "muon-rms", "--peers", PEERS, "--peers-only", "muon_fp32_loop")
    standard = bench(options, "muon-rms", "--set", "ns_form=standard")
    summary = {
        "rode_ms": rode["median_ms"],
        "rode_blas_share": rode["blas_share"],
        "muon_rms_bf16_ms": bf16["median_ms"],
        "torch_muon_over_muon_rms_bf16": bf16["peers"]["torch_muon"]["median_ms"]
        / bf16["median_ms"],
        "muon_rms_fp32_ms": fp32["median_ms"],
        "muon_rms_fp32_standard_form_ms": standard["median_ms"],
        "torch_fp32_loop_over_muon_rms_fp32": fp32["peers"]["muon_fp32_loop"]["median_ms"]
        / fp32["median_ms"],
    }
    result = {"commit": commit(), "summary": summary, "runs": [rode, bf16, fp32, standard]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    for key, value in summary.items():
        print(f"{key:40s} {value:10.3f}")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
