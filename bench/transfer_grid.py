# SPDX-License-Identifier: Apache-2.0
"""Do one lr and one lr_rho suit decoders of several widths and depths? Short runs over a grid.

  transfer_grid.py run --rode BIN --data DIR --out DIR [--budget S] [--done FILE ...] [--pack FILE]
  transfer_grid.py table DIR

Sizes: widths 256, 512, 1024 at depth 4, and depth 12 at width 512; heads of 64, the MLP 8/3 as wide.
Each is trained for 150 steps of task wiki-114m's batches: first with every --lr at the first
--lr-rho, then with the other --lr-rho at the size's best lr. Runs are made, kept and packed as
lab_study.py does: in parts. `table` prints the grid, and by how many steps of it the best values of
the sizes differ.
"""

import argparse
import json
import math
import pathlib

import lab_study
import study_files

SIZES = [(256, 4), (512, 4), (1024, 4), (512, 12)]
HEAD = 64
STEPS, WARMUP, SEED = 150, 30, 21
# Of scale=angle: the kernel scale's rates around 1.2e-3 times sqrt(768), the width that they suit.
LR = [0.00833, 0.0167, 0.0333, 0.0667, 0.133]
LR_RHO = [0.03, 0.015, 0.06]
OPTIONS = ["reproject=guarded", "nesterov=true", "radius=adaptive", "scale=angle"]


def model_of(width: int, depth: int) -> dict:
    return {
        "model.width": width,
        "model.layers": depth,
        "model.heads": width // HEAD,
        "model.kv_heads": width // HEAD,
        "model.mlp_width": round(width * 8 / 3 / HEAD) * HEAD,
        "train.eval_interval": STEPS,
    }


def run_of(size: tuple[int, int], lr: float, lr_rho: float, arguments) -> lab_study.Run:
    width, depth = size
    settings = model_of(width, depth) | dict(word.split("=", 1) for word in arguments.option)
    settings |= {"lr": lr, "lr_rho": lr_rho}
    name = f"w{width}-d{depth}-lr{lr:g}-rho{lr_rho:g}"
    return lab_study.Run(name, arguments.task, "rode", SEED, STEPS, WARMUP, settings)


def loss_of(out: pathlib.Path, run: lab_study.Run) -> float | None:
    """None: not made yet; infinite: diverged."""
    result = study_files.result_of(out / run.name)
    if result is None:
        return None
    return result["final_loss"] if result["status"] == "finished" else math.inf


def best_lr(size: tuple[int, int], out: pathlib.Path, arguments) -> float | None:
    losses = [loss_of(out, run_of(size, lr, arguments.lr_rho[0], arguments)) for lr in arguments.lr]
    if None in losses or min(losses) == math.inf:
        return None
    return arguments.lr[losses.index(min(losses))]


def plan(out: pathlib.Path, arguments) -> list[lab_study.Run]:
    runs = [run_of(s, lr, arguments.lr_rho[0], arguments) for lr in arguments.lr for s in SIZES]
    for size in SIZES:
        best = best_lr(size, out, arguments)
        if best is not None:
            runs += [run_of(size, best, rho, arguments) for rho in arguments.lr_rho[1:]]
    return runs


def grid(out: pathlib.Path) -> dict[tuple[int, int], dict[tuple[float, float], float]]:
    """By size and (lr, lr_rho), from the runs themselves."""
    found: dict = {}
    for path in sorted(out.glob("w*-d*-lr*-rho*/run.json")):
        told = json.loads(path.read_text())
        result = study_files.result_of(path.parent)
        if result is None:
            continue
        model, options = told["task"]["model"], told["options"]
        loss = result["final_loss"] if result["status"] == "finished" else math.inf
        size = model["width"], model["layers"]
        found.setdefault(size, {})[float(options["lr"]), float(options["lr_rho"])] = loss
    return found


def part(found: dict, title: str, values: list[float], loss) -> list[str]:
    """A table of sizes by values, the best of each size in bold, and how far the best ones differ."""
    lines = [f"| {title} | " + " | ".join(f"{v:g}" for v in values) + " |"]
    lines.append("|---" * (len(values) + 1) + "|")
    places = []
    for size in sorted(found, key=lambda s: (s[1], s[0])):
        row = [loss(size, value) for value in values]
        known = [x for x in row if x is not None]
        best = min(known, default=None)
        if best is not None and best < math.inf:
            places.append(row.index(best))
        cells = ["" if x is None else "diverged" if x == math.inf else f"{x:.4f}" for x in row]
        cells = [
            f"**{c}**" if x is not None and x == best else c
            for c, x in zip(cells, row, strict=True)
        ]
        lines.append(f"| width {size[0]}, depth {size[1]} | " + " | ".join(cells) + " |")
    if places:
        apart = max(places) - min(places)
        lines += ["", f"The best {title} of the sizes are {apart} steps of the grid apart."]
    return [*lines, ""]


def table(arguments: argparse.Namespace) -> None:
    found = grid(arguments.folder)
    if not found:
        raise SystemExit(f"{arguments.folder} has no runs of the grid")
    # The lr_rho of the first stage is the one with the most runs.
    rhos = [rho for losses in found.values() for _, rho in losses]
    first = max(set(rhos), key=rhos.count)
    lrs = sorted({lr for losses in found.values() for lr, rho in losses if rho == first})
    lines = [f"lr_rho {first:g}:", ""]
    lines += part(found, "lr", lrs, lambda size, lr: found[size].get((lr, first)))
    stage = {
        size: min((lr for lr in lrs if (lr, first) in of), key=lambda lr: of[lr, first])
        for size, of in found.items()
    }
    lines += ["At the best lr of each size:", ""]
    values = sorted(set(rhos))
    lines += part(found, "lr_rho", values, lambda size, rho: found[size].get((stage[size], rho)))
    print("\n".join(lines).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    words = commands.add_parser("run", help="make the runs that are not done")
    lab_study.run_words(words)
    words.add_argument("--task", default="wiki-114m")
    words.add_argument("--lr", type=float, nargs="+", default=LR)
    words.add_argument("--lr-rho", type=float, nargs="+", default=LR_RHO)
    words.add_argument("--option", nargs="*", default=OPTIONS, help="key=value of every run")
    words.set_defaults(function=lambda a: lab_study.make_runs(lambda out: plan(out, a), a))
    words = commands.add_parser("table", help="print the grid")
    words.add_argument("folder", type=pathlib.Path)
    words.set_defaults(function=table)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
