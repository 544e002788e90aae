# SPDX-License-Identifier: Apache-2.0
"""Model folders of Hugging Face transformers: whether they are whole, what they need, loading and
saving."""

import argparse
import contextlib
import importlib
import inspect
import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import torch

from rode import _engine
from rode._command import Failed, reason

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_LONGEST_HEADER = 100_000_000  # what safetensors itself accepts


def add_options(out: argparse.ArgumentParser) -> None:
    """How a model is loaded, and where."""
    add = out.add_argument
    add("--dtype", default="bf16", choices=tuple(DTYPES), help="type of the weights (bf16)")
    add("--device", default="auto", help="device: auto, cpu, cuda or cuda:N (auto)")
    add("--threads", type=int, help="number of CPU threads")


def transformers() -> Any:
    """The optional dependency, or the way to get it."""
    try:
        module = importlib.import_module("transformers")
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        return module
    except ImportError as error:
        raise Failed(
            f"[import] Hugging Face transformers cannot be imported: {reason(error)}; fine-tuning "
            "and evaluating need it; pip install '.[finetune]' in rode's repository, or pip install transformers "
            "safetensors"
        ) from None


def _header(path: pathlib.Path) -> dict[str, Any]:
    """The table of a safetensors file, whose length must fit it."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= min(_LONGEST_HEADER, size - 8):
                raise ValueError(f"{size} bytes are too few for its table")
            table = json.loads(file.read(length))
        table.pop("__metadata__", None)
        end = 8 + length + max((row["data_offsets"][1] for row in table.values()), default=0)
        if size != end:
            raise ValueError(f"it has {size} bytes, its table needs {end}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(
            f"[model] '{path}' is damaged: {reason(error)}; copy or download this file again"
        ) from None
    return dict(table)


def check_files(folder: pathlib.Path) -> None:
    """Reads every shard's table, so that a damaged one is found in seconds, not after loading."""
    if not (folder / "config.json").is_file():
        raise Failed(
            f"[model] '{folder}' has no config.json; expected a folder that transformers' "
            "save_pretrained made, or a downloaded checkpoint"
        )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            placed: dict[str, str] = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(f"[model] '{index}' is damaged: {reason(error)}; copy it again") from None
        tables = {name: _header(folder / name) for name in sorted(set(placed.values()))}
        for tensor, name in placed.items():
            if tensor not in tables[name]:
                raise Failed(
                    f"[model] '{folder / name}' has no tensor '{tensor}', which the index places "
                    "there; the files are of different checkpoints; copy all of them again"
                )
    elif (folder / "model.safetensors").is_file():
        _header(folder / "model.safetensors")
    else:
        raise Failed(
            f"[model] '{folder}' holds neither model.safetensors nor model.safetensors.index.json; "
            "save the model with save_pretrained"
        )


@contextlib.contextmanager
def _explained(folder: pathlib.Path, what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise Failed(f"[model] {what} in '{folder}': {reason(error)}; {remedy}") from error


def load_config(folder: pathlib.Path) -> Any:
    auto = transformers().AutoConfig
    with _explained(folder, "config.json is not understood", "install a newer transformers"):
        return auto.from_pretrained(str(folder), local_files_only=True)


def load_tokenizer(folder: pathlib.Path) -> Any:
    auto = transformers().AutoTokenizer
    with _explained(folder, "no tokenizer can be loaded", "copy the tokenizer's files there"):
        tokenizer = auto.from_pretrained(str(folder), local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def empty_model(config: Any, dtype: torch.dtype) -> Any:
    """The model's parameters without memory: shapes and names."""
    with torch.device("meta"):
        model = transformers().AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


def load_model(folder: pathlib.Path, dtype: torch.dtype, device: torch.device) -> Any:
    auto = transformers().AutoModelForCausalLM
    with _explained(folder, "the weights cannot be loaded", "copy the checkpoint again"):
        model, info = auto.from_pretrained(
            str(folder), dtype=dtype, local_files_only=True, output_loading_info=True
        )
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise Failed(
            f"[model] {type(model).__name__} cannot compute only some logits (its forward has no "
            "logits_to_keep); expected a causal language model of a recent transformers"
        )
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            names = sorted(map(str, info[kind]))
            raise Failed(
                f"[model] {len(names)} weights of the model are not in '{folder}' or have another "
                f"shape ({names[0]}, ...); expected a causal language model's checkpoint"
            )
    return model.to(device)


def pick_device(asked: str, stepped: bool) -> torch.device:
    """`stepped`: whether an optimizer works there, which needs an engine with CUDA."""
    engine = _engine.with_cuda() or not stepped
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() and engine else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise Failed("[device] cuda was requested, but PyTorch finds no GPU; use --device cpu")
    if asked.startswith("cuda") and not engine:
        raise Failed(
            "[device] the installed rode was built without CUDA; RODE_WITH_CUDA=ON pip install . in "
            "its repository, or --device cpu"
        )
    try:
        return torch.device(asked)
    except RuntimeError:
        raise Failed(f"[device] '{asked}'; expected auto, cpu, cuda or cuda:N") from None
