# SPDX-License-Identifier: Apache-2.0
"""Folders of runs with known numbers, as `rode train` writes them, without the time of a run."""

import json
import math

STEPS, EVERY = 200, 10
KINDS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj")
LAYERS = 4

MODEL = {"kind": "qwen2", "layers": LAYERS, "width": 16}
DATA = {"kind": "tiny-lm", "sequence": 16}
TRAIN = {"steps": STEPS, "batch": 8, "schedule": "cosine", "precision": "fp32"}


def describe(task="small", optimizer="rode", seed=1, steps=STEPS, **options):
    options = {"lr": "0.001", **{key: str(value) for key, value in options.items()}}
    about = {"name": task, "model": MODEL, "data": DATA, "train": TRAIN}
    run = {"format": 1, "task": about, "optimizer": optimizer, "method": optimizer}
    return {**run, "options": options, "seed": seed, "steps": steps, "warmup": 0}


def matrices(values):
    return {
        f"model.layers.{layer}.{kind}.weight": values(layer + 0.2 * number)
        for layer in range(LAYERS)
        for number, kind in enumerate(KINDS)
    }


def curve_log(number, seed, diverges, angles=True):
    """Lines of a run whose curves look like one."""
    log = []
    for step in range(STEPS + 1):
        level = 2 + 0.08 * number
        loss = level + 5 * math.exp(-step / 40) + 0.05 * math.sin(step + 7 * seed) + 0.03 * seed
        if diverges and step > STEPS // 3:
            loss += math.exp((step - STEPS / 3) / 6)
        if diverges and step > 2 * STEPS // 3:
            log.append({"kind": "diverged", "step": step, "what": "the loss is inf"})
            break
        norm = 20 + number + step / 20
        if step % EVERY == 0:
            line = {"kind": "evaluation", "step": step, "loss": loss, "weight_norm": norm}
            radii = matrices(lambda at, now=step: {"radius": 1 + 0.1 * at + 0.01 * number * now})
            log.append({**line, "matrices": radii})
        if step < STEPS:
            line = {"kind": "step", "step": step, "loss": loss, "weight_norm": norm}
            line |= {"gradient_norm": loss / (3 + number), "update_ratio": 1e-2 / (1 + step)}
            line["update_norm"] = line["update_ratio"] * norm
            if angles and (step + 1) % EVERY == 0:
                shrink = 1 - step / STEPS / 2
                line["matrices"] = matrices(
                    lambda at, by=shrink: {
                        "rho": 1.0,
                        "rho_next": 1 + 1e-3 * by,
                        "theta": 0.02 * (1 + at) * by,
                        "q": 3.0 + at,
                        "gamma": 1.0,
                    }
                )
            log.append(line)
    return log


def write_run(folder, run, losses=None, log=None, status="finished", **result):
    """`losses`: final and best; or those of the log's last evaluation."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    if log is None:
        log = [
            {"kind": "evaluation", "step": step, "loss": losses[0] + 1 - step / STEPS}
            for step in (0, STEPS // 2, STEPS)
        ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    times = [
        {"step": line["step"], "seconds": 0.05 * line["step"], "units_per_second": 2560.0}
        for line in log
        if line["kind"] == "evaluation"
    ]
    (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
    if losses is None:
        last = next(line["loss"] for line in reversed(log) if line["kind"] == "evaluation")
        losses = (last, last)
    whole = {"status": status, "steps": run["steps"], "final_loss": losses[0]}
    whole |= {"best_loss": losses[1], "weight_norm": 30.0, "seconds": 12.5, "device": "cpu"}
    whole |= {"peak_memory_bytes": 500_000_000, "state_bytes": 4_000_000, **result}
    if status != "unfinished":
        (folder / "result.json").write_text(json.dumps(whole))
