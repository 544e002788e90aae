# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on one GPU: a random model of 1B parameters or more in bf16, 20 steps with each of
the paper's six optimizers: memory and step time beside the plan; generation beside plain
transformers.

    python bench/finetune_h200.py --out bench/results/h200_finetune.json
    python bench/finetune_h200.py --tiny --device cpu --steps 2     what the tests run

Each optimizer runs in a process of its own, so that peaks are not mixed. It is forked from this
one, which has imported the libraries and not touched the device: an import takes longer than the
steps. `--family qwen3` takes plain attention: without kernels of its own for linear attention,
Qwen3.5's layers run in transformers' Python loops, and the steps measure those.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
import time
import traceback

import torch

import rode
from rode.evaluate.model import Answerer
from rode.finetune import checkpoint, loop, memory, protocol
from rode.finetune.encode import Encoded

# 1.60 B parameters of the Qwen3.5 family, 1.23 B of Qwen3.
BIG = {
    "vocab_size": 65536,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 20,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
}
TINY = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}


class Numbers:
    """Stands for a tokenizer: generation here counts tokens only."""

    pad_token_id, eos_token_id = 0, 1

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, tokens))


def config_of(given: argparse.Namespace):
    made = checkpoint.transformers()
    sizes = TINY if given.tiny else BIG
    if given.family == "qwen3.5":
        return made.Qwen3_5TextConfig(**sizes)
    return made.Qwen3Config(**{k: v for k, v in sizes.items() if not k.startswith("linear")})


def new_model(given: argparse.Namespace, device: torch.device):
    torch.manual_seed(0)
    auto = checkpoint.transformers().AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(config_of(given), dtype=torch.bfloat16)


def rows_of(count: int, length: int, vocabulary: int) -> list[Encoded]:
    chosen = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, vocabulary, (count, length), generator=chosen).tolist()
    return [Encoded(row, 1) for row in tokens]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(given: argparse.Namespace) -> dict:
    """Plan, peak and step time of one optimizer."""
    device = checkpoint.pick_device(given.device, stepped=True)
    name, on_gpu = given.optimizer, device.type == "cuda"
    options = protocol.options_of(name, [], "nearest", 0, published=False)
    config = config_of(given)
    empty = checkpoint.empty_model(config, torch.bfloat16)
    planned = memory.plan(name, options, empty, config, given.length, True, on_gpu)
    model = new_model(given, device).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = protocol.make_optimizer(name, protocol.groups_of(model), options)
    rows = rows_of(given.accumulation, given.length, config.vocab_size)
    seconds = []
    before = torch.cuda.mem_get_info(device)[0] if on_gpu else 0
    least_free = before
    for _ in range(given.steps):
        wait(device)
        begun = time.perf_counter()
        for row in rows:
            loss = loop.loss_sum(model, [row], 0, device)
            (loss / (given.length * len(rows))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        wait(device)
        stepped = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        optimizer.check()
        wait(device)
        seconds.append((time.perf_counter() - begun, time.perf_counter() - stepped))
        if on_gpu:
            least_free = min(least_free, torch.cuda.mem_get_info(device)[0])
    result = {
        "optimizer": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "planned_bytes": planned,
        "planned_together": sum(planned.values()),
        "step_seconds": sorted(whole for whole, _ in seconds)[len(seconds) // 2],
        "optimizer_seconds": sorted(own for _, own in seconds)[len(seconds) // 2],
    }
    if on_gpu:
        # Of the whole device, so that the engine's own memory and the context are included.
        used = torch.cuda.get_device_properties(device).total_memory - least_free
        workspace = optimizer._binding.engine.workspace_bytes()
        result.update(
            torch_peak_bytes=torch.cuda.max_memory_allocated(device),
            engine_workspace_bytes=workspace,
            device_used_bytes=used,
            used_over_planned=used / sum(planned.values()),
        )
    return result


def generate(given: argparse.Namespace) -> dict:
    """Tokens per second of `rode evaluate` and of model.generate, in turn on equal prompts."""
    device = checkpoint.pick_device(given.device, stepped=False)
    model = new_model(given, device)
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [row.tokens for row in rows_of(given.batch, given.prompt, vocabulary)]
    answerer = Answerer(model, Numbers(), "plain", given.new_tokens, settle=False)
    answerer.ends = []  # both write the full length
    model.generation_config.eos_token_id = None
    tokens = torch.tensor(prompts, device=device)
    plain = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    settings = {"max_new_tokens": given.new_tokens, "do_sample": False}
    times: dict[str, list[float]] = {"rode": [], "transformers": []}
    for _ in range(given.rounds):
        for name in times:
            wait(device)
            begun = time.perf_counter()
            if name == "rode":
                answerer.written(prompts)
            else:
                with torch.no_grad():
                    model.generate(**plain, **settings)
            wait(device)
            times[name].append(time.perf_counter() - begun)
    written = given.batch * given.new_tokens
    return {f"{name}_tokens_per_second": written / min(row) for name, row in times.items()}


def work(given: argparse.Namespace, part: str, results) -> None:
    """One part, in a process of its own."""
    given.optimizer = part
    try:
        found = generate(given) if part == "generate" else train(given)
        if given.device.startswith("cuda"):
            found["device"] = torch.cuda.get_device_name()
    except Exception as error:  # its row says so, the others go on
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}"}
    results.put(found)


def apart(given: argparse.Namespace, part: str) -> dict:
    forked = multiprocessing.get_context("fork")
    results = forked.SimpleQueue()
    worker = forked.Process(target=work, args=(given, part, results))
    worker.start()
    worker.join()
    return results.get() if not results.empty() else {"failed": f"exit code {worker.exitcode}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="of generation")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3, help="of generation, the best counts")
    parser.add_argument("--parts", nargs="+", help="optimizers and generate; default: all")
    families = ["qwen3.5", "qwen3"]
    parser.add_argument("--family", choices=families, help="default: Qwen3.5 where it is known")
    given = parser.parse_args()
    known = hasattr(checkpoint.transformers(), "Qwen3_5TextConfig")
    given.family = given.family or families[0 if known else 1]
    rows = {}
    for part in given.parts or [*protocol.presets(), "generate"]:
        rows[part] = apart(given, part)
        print(part, json.dumps(rows[part]), flush=True)
    result = {
        "family": given.family,
        "rode": rode.__version__,
        "torch": torch.__version__,
        "steps": given.steps,
        "length": given.length,
        "accumulation": given.accumulation,
        "parts": rows,
    }
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    return int(any("failed" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
