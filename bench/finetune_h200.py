# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on one GPU: a random model of 1B parameters or more in bf16, 20 steps with each of
the paper's six optimizers: memory and step time beside the plan; generation beside plain
transformers.

    python bench/finetune_h200.py --out bench/results/h200_finetune.json
    python bench/finetune_h200.py --tiny --device cpu --steps 2     what the tests run

Each optimizer runs in a process of its own, so that peaks are not mixed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import torch

import rode
from rode.evaluate.model import Answerer
from rode.finetune import checkpoint, loop, memory, protocol
from rode.finetune.encode import Encoded

# Of the Qwen3.5 family: 1.60 B parameters.
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


def config_of(tiny: bool):
    made = checkpoint.transformers()
    sizes = TINY if tiny else BIG
    if hasattr(made, "Qwen3_5TextConfig"):
        return made.Qwen3_5TextConfig(**sizes)
    return made.Qwen3Config(**{k: v for k, v in sizes.items() if not k.startswith("linear")})


def new_model(tiny: bool, device: torch.device):
    torch.manual_seed(0)
    auto = checkpoint.transformers().AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(config_of(tiny), dtype=torch.bfloat16)


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
    config = config_of(given.tiny)
    empty = checkpoint.empty_model(config, torch.bfloat16)
    planned = memory.plan(name, options, empty, config, given.length, True, on_gpu)
    model = new_model(given.tiny, device).train()
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
    model = new_model(given.tiny, device)
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [row.tokens for row in rows_of(given.batch, given.prompt, vocabulary)]
    answerer = Answerer(model, Numbers(), "plain", given.new_tokens, settle=False)
    answerer.ends = []  # both write the full length
    model.generation_config.eos_token_id = None
    tokens = torch.tensor(prompts, device=device)
    plain = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    settings = {"max_new_tokens": given.new_tokens, "do_sample": False}
    times: dict[str, list[float]] = {"rode": [], "transformers": []}
    for _ in range(3):
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


def apart(given: argparse.Namespace, part: str) -> dict:
    """One part in a process of its own; its last line is the result."""
    words = [sys.executable, __file__, "--part", part]
    for key in ("device", "steps", "length", "accumulation", "batch", "prompt", "new_tokens"):
        words += [f"--{key.replace('_', '-')}", str(getattr(given, key))]
    done = subprocess.run(words + ["--tiny"] * given.tiny, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return {"failed": f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


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
    parser.add_argument("--part", help="one optimizer, or generate: in this process")
    given = parser.parse_args()
    if given.part:
        given.optimizer = given.part
        print(json.dumps(generate(given) if given.part == "generate" else train(given)))
        return 0
    device = torch.cuda.get_device_name() if given.device.startswith("cuda") else "cpu"
    parts = [*protocol.presets(), "generate"]
    rows = {}
    for part in parts:
        rows[part] = apart(given, part)
        print(part, json.dumps(rows[part]), flush=True)
    result = {
        "device": device,
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
