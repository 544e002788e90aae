# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a test once, also where several workers of pytest share its tests, and
ends them."""

import json
import os
import pathlib
import subprocess
import sys
import time

import torch

TIMEOUT_S = 300


def run_ranks(factory, program: str, world: int) -> tuple[pathlib.Path, list[int]]:
    """The folder where `world` processes of the program have left what they found, and their exit
    codes. `factory`: pytest's tmp_path_factory."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers
    folder = base / pathlib.Path(program).stem
    codes = folder / "codes.json"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker runs them, or has
        end = time.monotonic() + 2 * TIMEOUT_S
        while not codes.exists() and time.monotonic() < end:
            time.sleep(0.1)
        return folder, json.loads(codes.read_text())
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen([sys.executable, program, str(rank), str(folder)], env=environment)
        for rank in range(world)
    ]
    found = []
    try:
        end = time.monotonic() + TIMEOUT_S
        found = [p.wait(timeout=max(1, end - time.monotonic())) for p in running]
    finally:
        for p in running:
            p.kill()
        part = folder / "codes.part"
        part.write_text(json.dumps(found))
        part.rename(codes)
    return folder, found


def end_rank(results: dict, folder: str, rank: int, world: int) -> None:
    """Leaves what a process has found as RANK.pt, and ends it when all have done so."""
    torch.save(results, f"{folder}/{rank}.part")
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    while not all(os.path.exists(f"{folder}/{peer}.pt") for peer in range(world)):
        time.sleep(0.01)
    os._exit(0)  # without gloo's destructors, which may wait for a peer that is gone
