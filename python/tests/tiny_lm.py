# SPDX-License-Identifier: Apache-2.0
"""A tiny random language model of the Qwen3.5 or Qwen3 family with a tokenizer of its own, and
questions that it can learn: what the tests of fine-tuning and evaluating share."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

# Where tests of the engine look for real files, too.
DATA = pathlib.Path(os.environ.get("RODE_SHARED_DATA", ROOT.parent / "shared" / "data"))
TEMPLATE = (
    "{% for message in messages %}<user>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Letters and signs are tokens of their own, so a question is a few dozen tokens.
SIGNS = [chr(code) for code in range(32, 127)] + ["\n"]
SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>"]


def tokenizer(folder: pathlib.Path, signs=None, template: str | None = TEMPLATE, end="<end>"):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, "<unk>", *(signs or SIGNS)])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens(SPECIAL)
    out = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token=end, unk_token="<unk>"
    )
    out.chat_template = template
    out.save_pretrained(str(folder))
    return out


def model(folder: pathlib.Path, family: str = "auto", tied: bool = False):
    """A checkpoint of one layer of each kind; the family is Qwen3.5 where transformers has it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 112,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "num_hidden_layers": 2,
        "initializer_range": 0.08,
    }
    if family == "auto":
        family = "qwen3_5" if hasattr(transformers, "Qwen3_5TextConfig") else "qwen3"
    if family == "qwen3_5":
        config = transformers.Qwen3_5TextConfig(
            **sizes,
            linear_key_head_dim=12,
            linear_value_head_dim=12,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            layer_types=["linear_attention", "full_attention"],
        )
    else:
        config = transformers.Qwen3Config(**sizes)
    made = transformers.AutoModelForCausalLM.from_config(config)
    made.save_pretrained(str(folder))
    return made


def questions(count: int) -> list[dict[str, str]]:
    """Sums in GSM8K's form."""
    out = []
    for i in range(count):
        a, b = 2 + i, 3 + (i * 5) % 7
        text = f"Ann has {a} eggs, buys {b}. How many?"
        out.append(
            {"question": text, "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
        )
    return out


def write_lines(path: pathlib.Path, rows) -> pathlib.Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def benchmarks(folder: pathlib.Path, rows: list[dict[str, str]]) -> pathlib.Path:
    """Small files of all four benchmarks, under the names that --data looks for."""
    folder.mkdir(exist_ok=True)
    write_lines(folder / "gsm8k_test.jsonl", rows)
    sums = [row["answer"].rsplit("#### ", 1)[1] for row in rows]
    solved = [
        {"problem": row["question"], "solution": f"It is $\\boxed{{{x}}}$.", "answer": x}
        for row, x in zip(rows, sums, strict=True)
    ]
    write_lines(folder / "math500_test.jsonl", solved)
    choices = [
        {"question": f"Pick {i}", "choices": ["one", "two", "three", "four"], "answer": i % 4}
        for i in range(6)
    ]
    write_lines(folder / "mmlu_stem_test.jsonl", choices)
    options = [
        {"question": f"Which {i}", "options": [str(j) for j in range(3 + i)], "answer_index": i}
        for i in range(6)
    ]
    write_lines(folder / "mmlu_pro_math.jsonl", options)
    return folder


def rode(*arguments, **more) -> subprocess.CompletedProcess:
    """`python -m rode`, with one thread."""
    command = [sys.executable, "-m", "rode", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, **more
    )
