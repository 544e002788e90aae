# SPDX-License-Identifier: Apache-2.0
"""The 114M model's step through Python beside the engine's own time, both measured in this run.

    RODE_BIN=build/cuda/bin/rode python bench/python_cuda_step.py [--out FILE]

The engine's time is that of `rode bench step --backend cuda`. Through Python the same shapes are
stepped in the same way: two sets in turn, so that none is in the L2 cache, and events between the
steps; from Python step by step, with gradients that lie elsewhere in every step, and as replays of
a CUDA graph. Exits with 1 where a median is more than 3 % above the engine's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

import rode

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETS, WARMUP, REPEAT = 2, 10, 50
ALLOWED = 1.03


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of qwen2-114m, as apps/rode/model_shapes.cpp has them."""
    width, key_value, wide = 768, 256, 2048
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (50257, width)}
    for i in range(12):
        layer = f"model.layers.{i}."
        for name, rows in (("q", width), ("k", key_value), ("v", key_value)):
            out[f"{layer}self_attn.{name}_proj.weight"] = (rows, width)
            out[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        out[f"{layer}self_attn.o_proj.weight"] = (width, width)
        out[f"{layer}mlp.gate_proj.weight"] = (wide, width)
        out[f"{layer}mlp.up_proj.weight"] = (wide, width)
        out[f"{layer}mlp.down_proj.weight"] = (width, wide)
        out[f"{layer}input_layernorm.weight"] = (width,)
        out[f"{layer}post_attention_layernorm.weight"] = (width,)
    out["model.norm.weight"] = (width,)
    return out


class Set:
    """A model's weights and gradients, and its optimizer."""

    def __init__(self) -> None:
        self.params = {
            name: torch.nn.Parameter(0.02 * torch.randn(shape, device="cuda"))
            for name, shape in shapes().items()
        }
        self.grads = [[0.02 * torch.randn_like(p) for p in self.params.values()] for _ in range(2)]
        self.bind(0)
        self.optimizer = rode.RODE(self.params.items())

    def bind(self, which: int) -> None:
        for p, grad in zip(self.params.values(), self.grads[which], strict=True):
            p.grad = grad


def captured(optimizer: torch.optim.Optimizer) -> torch.cuda.CUDAGraph:
    """PyTorch's convention: warm up on a side stream, then capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


def measure(steps) -> dict[str, float]:
    """Medians of a list of functions called in turn: device time, and the host's before it."""
    for i in range(WARMUP):
        steps[i % len(steps)]()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEAT + 1)]
    host = []
    steps[0]()  # the first measured step finds the device at work
    for i in range(REPEAT):
        marks[i].record()
        start = time.perf_counter()
        steps[i % len(steps)]()
        host.append(1e6 * (time.perf_counter() - start))
    marks[REPEAT].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks[:-1], marks[1:], strict=True)]
    return {
        "median_ms": statistics.median(times),
        "least_ms": min(times),
        "most_ms": max(times),
        "host_us": statistics.median(host),
    }


def engine() -> dict[str, float]:
    program = os.environ.get("RODE_BIN", str(ROOT / "build/cuda/bin/rode"))
    done = subprocess.run(
        [program, "bench", "step", "--backend", "cuda", "--shapes", "qwen2-114m",
         "--optimizer", "rode", "--json"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def python() -> dict[str, dict[str, float]]:
    sets = [Set() for _ in range(SETS)]
    turns = [0] * SETS

    def with_new_gradients(i: int) -> None:
        turns[i] ^= 1
        sets[i].bind(turns[i])
        sets[i].optimizer.step()

    result = {
        "step": measure([s.optimizer.step for s in sets]),
        "new gradients": measure([lambda i=i: with_new_gradients(i) for i in range(SETS)]),
    }
    graphs = [captured(s.optimizer) for s in sets]
    result["graph"] = measure([graph.replay for graph in graphs])
    for s in sets:
        s.optimizer.check()  # a refused step is quick and proves nothing
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON with all times")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 2
    torch.manual_seed(1)
    # The engine before and after: what the chip's clock does in between shows.
    before = engine()["median_ms"]
    rows = python()
    torch.cuda.empty_cache()
    own = statistics.median([before, engine()["median_ms"]])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, qwen2-114m, rode")
    print(f"{'engine':<16}{own:>8.3f} ms")
    worst = 0.0
    for name, row in rows.items():
        row["over_engine"] = row["median_ms"] / own
        worst = max(worst, row["over_engine"])
        print(f"{name:<16}{row['median_ms']:>8.3f} ms {100 * row['over_engine'] - 100:>+6.1f} %, "
              f"host {row['host_us']:.0f} us")  # fmt: skip
    if options.out:
        text = json.dumps({"engine_ms": own, "engine_first_ms": before, "python": rows}, indent=1)
        pathlib.Path(options.out).write_text(text + "\n")
    return 0 if worst <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
