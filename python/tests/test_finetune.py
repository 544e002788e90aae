# SPDX-License-Identifier: Apache-2.0
"""`python -m rode finetune` and `evaluate` as a user runs them, on a tiny model: all six
optimizers and the table, a kill, bad input."""

import argparse
import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys

import pytest
import tiny_lm
import torch
from conftest import ROOT

import rode
from rode.__main__ import main
from rode._command import Failed
from rode.finetune import checkpoint, data, encode, loop, store

# At which the tiny model learns; the paper's are for one of 9B parameters.
RATES = {
    "adamw": ["lr=1e-2"],
    "muon": ["lr=3e-2", "lr_rest=1e-2"],
    "muon-rms": ["lr=1e-2", "lr_rest=1e-2"],
    "adafactor": ["lr=1e-2"],
    "soap": ["lr=1e-2", "lr_rest=1e-2"],
    "rode": ["lr=2e-2", "lr_rho=1e-2", "lr_rest=1e-2"],
}


def made(folder, family):
    """A checkpoint, training data that repeat four questions, and benchmarks with these."""
    tiny_lm.tokenizer(folder / "model")
    tiny_lm.model(folder / "model", family)
    tiny_lm.write_lines(folder / "train.jsonl", tiny_lm.questions(4) * 4)
    tiny_lm.benchmarks(folder / "eval", tiny_lm.questions(4))
    return folder


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Of the paper's family, whose linear attention is slow on the CPU."""
    return made(tmp_path_factory.mktemp("hybrid"), "auto")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return made(tmp_path_factory.mktemp("place"), "qwen3")


def arguments(place, out, name="rode", *more, steps=40, rates=None):
    pairs = [part for pair in (rates or RATES[name]) for part in ("--set", pair)]
    fixed = {
        "--model": place / "model",
        "--data": place / "train.jsonl",
        "--out": out,
        "--optimizer": name,
        "--steps": steps,
        "--validation": 4,
        "--eval-interval": 20,
        "--micro-batch": 8,
        "--accumulation": 1,
        "--length": 96,
        "--device": "cpu",
    }
    words = [word for pair in fixed.items() for word in pair]
    return ["finetune", *map(str, words), *pairs, *map(str, more)]


def result(out):
    return json.loads((out / "result.json").read_text("utf-8"))


def curve(out):
    """What the log says, without times."""
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_six_optimizers_learn_and_fill_the_table(hybrid, tmp_path, capsys):
    place = hybrid
    runs = []
    for name in RATES:
        out = tmp_path / name
        runs.append(str(out))
        assert main(arguments(place, out, name, "--dtype", "fp32", steps=60)) == 0
        done = result(out)
        losses = [row["loss"] for row in curve(out) if row["kind"] == "validation"]
        assert done["status"] == "finished" and len(losses) == 3
        assert done["best_validation_loss"] == min(losses) < 0.3
        evaluate = ["evaluate", "--run", out, "--data", place / "eval", "--dtype", "fp32"]
        assert main([*map(str, evaluate), "--max-new-tokens", "40"]) == 0
        scores = json.loads((out / "evaluation" / "results.json").read_text("utf-8"))
        assert scores["tasks"]["gsm8k"]["correct"] == 4, name
        assert scores["best_validation_loss"] == done["best_validation_loss"]
        asked = json.loads((out / "run.json").read_text("utf-8"))
        assert all(scores[key] == asked[key] for key in ("options", "split", "steps", "format"))
        assert asked["model"].endswith("/" + scores["base_model"])
    capsys.readouterr()
    assert main(["evaluate", "table", *runs]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 8
    labels = [line.split(" | ")[0] for line in shown[2:]]
    assert labels == [
        f"| {name}" for name in ("AdamW", "Muon Original", "Muon RMS", "Adafactor", "SOAP", "RODE")
    ]
    assert all("**100.00** (paper" in line for line in shown[2:])


# Ends as by the kernel's hand: in the middle of the eighth step, or while the second checkpoint is
# being written.
_KILLED = """
import os, signal, sys
import torch
from rode.__main__ import main
from rode.finetune import store

where, *arguments = sys.argv[1:]
module, name, at = {
    "step": (torch.nn.utils, "clip_grad_norm_", 8),
    "checkpoint": (store, "write_json", 5),  # run.json, then a best model and a checkpoint each
}[where]
inner, calls = getattr(module, name), 0

def counted(*given):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(*given)

setattr(module, name, counted)
main(arguments)
"""


@pytest.mark.parametrize("where", ["step", "checkpoint"])
def test_a_run_that_was_killed_continues_on_the_same_curve(place, tmp_path, where):
    out, whole = tmp_path / "killed", tmp_path / "whole"
    common = ("--rounding", "stochastic", "--eval-interval", 3, "--threads", 1)
    given = arguments(place, out, "rode", *common, steps=11)
    killed = subprocess.run([sys.executable, "-c", _KILLED, where, *given], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    step = {"step": "000006", "checkpoint": "000003"}[where]
    assert [path.name for path in store.checkpoints(out)] == [f"checkpoint-{step}"]
    assert len(list(out.glob("*.tmp"))) == (where == "checkpoint")
    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"kind": "tra')  # a line that the kill has cut
    assert main(given) == 2  # not without --resume
    assert main([*given, "--resume"]) == 0
    assert main(arguments(place, whole, "rode", *common, steps=11)) == 0
    assert curve(out) == curve(whole)
    best = [json.loads((run / "best" / "finetune.json").read_text()) for run in (out, whole)]
    assert best[0]["step"] == best[1]["step"] == result(whole)["best_step"]
    left = sorted(path.name for path in out.glob("*-*"))
    assert left == ["best-000011", "checkpoint-000011"]


@pytest.mark.parametrize("at", ["step", "validation"])
def test_a_signal_saves_the_last_complete_step(place, tmp_path, capsys, monkeypatch, at):
    out, whole = tmp_path / "run", tmp_path / "whole"
    common = ("--eval-interval", 3, "--dtype", "fp32")
    inner = {"step": torch.nn.utils.clip_grad_norm_, "validation": loop.batch_of}[at]
    calls = []

    def signalled(*given):
        calls.append(given)
        # The fourth step; or the second of the first validation's four batches.
        if len(calls) == {"step": 4, "validation": 5}[at]:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*given)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        module = torch.nn.utils if at == "step" else loop
        patch.setattr(module, inner.__name__, signalled)
        assert main(arguments(place, out, "rode", *common, steps=7)) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    step = {"step": 4, "validation": 3}[at]
    assert f"stopped after step {step}, which is saved" in capsys.readouterr().err
    assert [path.name for path in store.checkpoints(out)] == [f"checkpoint-{step:06}"]
    assert main(arguments(place, out, "rode", *common, "--resume", steps=7)) == 0
    assert main(arguments(place, whole, "rode", *common, steps=7)) == 0
    assert curve(out) == curve(whole)


def test_the_lowest_validation_loss_is_the_one_that_is_kept(place, tmp_path):
    """Without the validation's questions in training, the model learns the others by heart."""
    source = tiny_lm.write_lines(tmp_path / "train.jsonl", tiny_lm.questions(12))
    out = tmp_path / "run"
    given = arguments(place, out, "adamw", "--dtype", "fp32", steps=60)
    given[given.index("--data") + 1] = str(source)
    assert main(given) == 0
    losses = {row["step"]: row["loss"] for row in curve(out) if row["kind"] == "validation"}
    step = min(losses, key=losses.__getitem__)
    assert losses[60] > 1.05 * losses[step], losses
    assert (out / "best").resolve().name == f"best-{step:06}"
    assert result(out)["best_validation_loss"] == losses[step]
    kept = checkpoint.load_model(out / "best", torch.float32, torch.device("cpu"))
    tokenizer = checkpoint.load_tokenizer(out / "best")
    held = data.examples_of(out / "split" / "validation.jsonl", "prompt", "answer")
    rows = encode.encoded_all(tokenizer, "chat", held, 96, "validation")
    loss = loop.validation_loss(kept, rows, 1, tokenizer.pad_token_id, torch.device("cpu"))
    assert loss == pytest.approx(losses[step], rel=1e-6)


def test_a_trial_of_a_sweep_leaves_its_result_only(place, tmp_path, capsys, monkeypatch):
    out, whole = tmp_path / "trial", tmp_path / "whole"
    given = ("--eval-interval", 3, "--dtype", "fp32")
    assert main(arguments(place, whole, "muon", *given, steps=6)) == 0
    assert main(arguments(place, out, "muon", *given, "--trial", steps=6)) == 0
    assert result(out)["best_validation_loss"] == result(whole)["best_validation_loss"]
    assert result(out)["model"] is None
    assert sorted(path.name for path in out.iterdir()) == [
        "lock", "log.jsonl", "result.json", "run.json", "split"
    ]  # fmt: skip
    # A finished run is not begun again.
    monkeypatch.setattr(checkpoint, "load_model", None)
    capsys.readouterr()
    for run in (out, whole):
        assert main(arguments(place, run, "muon", *given, "--resume", "--json", steps=6)) == 0
        assert json.loads(capsys.readouterr().out) == result(run)


def test_a_tied_embedding_is_one_matrix_through_checkpoints(place, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    tiny_lm.tokenizer(tmp_path / "model")
    model = tiny_lm.model(tmp_path / "model", "qwen3", tied=True)
    shutil.copy(place / "train.jsonl", tmp_path / "train.jsonl")
    given = ("--eval-interval", 2, "--dtype", "fp32")
    assert main(arguments(tmp_path, out, "rode", *given, "--until", 2, steps=4)) == 0
    assert main(arguments(tmp_path, out, "rode", *given, "--resume", steps=4)) == 0
    assert main(arguments(tmp_path, whole, "rode", *given, steps=4)) == 0
    assert curve(out) == curve(whole)
    kept = checkpoint.load_model(out / "best", torch.float32, torch.device("cpu"))
    assert kept.lm_head.weight is kept.model.embed_tokens.weight
    assert not torch.equal(kept.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "exact"])
def test_bf16_runs_say_what_nearest_rounding_loses(place, tmp_path, rounding):
    out = tmp_path / "run"
    rates = ["lr=6.259e-6", "lr_rho=2.919e-6", "lr_rest=1e-2"]
    given = arguments(place, out, "rode", "--rounding", rounding, steps=2, rates=rates)
    assert main(given) == 0
    measured = next(row for row in curve(out) if row["kind"] == "rounding")
    assert 0.2 < measured["matrix"] <= 1
    state = store.checkpoints(out)[0] / "part-00000.safetensors"
    assert (b"low_bits" in state.read_bytes()) == (rounding == "exact")


def test_a_full_disk_loses_nothing(place, tmp_path, capsys):
    out, whole = tmp_path / "run", tmp_path / "whole"
    given = ("--eval-interval", 2, "--dtype", "fp32")
    assert main(arguments(place, out, "rode", *given, "--until", 2, steps=6)) == 0
    assert result(out)["status"] == "paused"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        code = main(arguments(place, out, "rode", *given, "--resume", steps=6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert code == 1
    assert "cannot be written: the disk is full" in said and "--resume" in said
    assert [path.name for path in store.checkpoints(out)] == ["checkpoint-000002"]
    assert not list(out.glob("*.tmp"))
    assert main(arguments(place, out, "rode", *given, "--resume", steps=6)) == 0
    assert main(arguments(place, whole, "rode", *given, steps=6)) == 0
    assert curve(out) == curve(whole)


def test_a_run_that_diverges_says_so_and_keeps_its_best(place, tmp_path, capsys):
    out = tmp_path / "run"
    given = ("--eval-interval", 1, "--dtype", "fp32", "--warmup", 0.9)
    code = main(arguments(place, out, "adamw", *given, steps=8, rates=["lr=1e30"]))
    assert code == 1
    assert "use lower rates" in capsys.readouterr().err
    assert result(out)["status"] == "diverged"
    assert not list(out.glob("*.tmp"))


def test_an_error_that_is_no_divergence_is_not_recorded_as_one(
    place, tmp_path, capsys, monkeypatch
):
    def refuse(_):
        raise rode.Error("[step] the gradients changed their shape")

    monkeypatch.setattr(rode.RODE, "check", refuse)
    assert main(arguments(place, tmp_path / "run", "rode", steps=2)) == 1
    said = capsys.readouterr().err
    assert "changed their shape" in said and "use lower rates" not in said
    assert not (tmp_path / "run" / "result.json").exists()


def failing(place, tmp_path, capsys, *more, code=1, **changes):
    """The error of a run that must not begin."""
    out = tmp_path / "run"
    given = arguments(place, out, "rode", *more)
    for flag, value in changes.items():
        given[given.index(f"--{flag}") + 1] = str(value)
    assert main(given) == code
    assert not (out / "log.jsonl").exists()
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_too_little_disk_or_memory_is_said_before_loading(place, tmp_path, capsys, monkeypatch):
    from rode.finetune import memory

    def unexpected(*_):
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(checkpoint, "load_model", unexpected)
    with monkeypatch.context() as patch:
        patch.setattr(store, "free_bytes", lambda _: 1000)
        said = failing(place, tmp_path, capsys)
        assert "1.00 kB of free space" in said
    monkeypatch.setattr(memory, "available", lambda _: 100_000)
    said = failing(place, tmp_path, capsys)
    assert "[memory] the run needs" in said and "gradients" in said


def test_a_truncated_shard_is_named_before_loading(place, tmp_path, capsys):
    folder = tmp_path / "model"
    model = tiny_lm.model(folder)
    tiny_lm.tokenizer(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(str(folder), max_shard_size="100KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    checkpoint.check_files(folder)
    whole = shards[1].read_bytes()
    shards[1].write_bytes(whole[:-100])
    said = failing(place, tmp_path, capsys, model=folder)
    assert f"'{shards[1]}' is damaged" in said and f"it has {len(whole) - 100} bytes" in said
    shards[1].write_bytes(whole[:5])
    with pytest.raises(Failed, match="damaged"):
        checkpoint.check_files(folder)
    shutil.copy(shards[0], shards[1])
    with pytest.raises(Failed, match="has no tensor"):
        checkpoint.check_files(folder)
    shards[1].unlink()
    with pytest.raises(Failed, match="No such file"):
        checkpoint.check_files(folder)


def test_other_bad_input_is_named(place, tmp_path, capsys, monkeypatch):
    assert "does not exist" in failing(place, tmp_path, capsys, data=tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"question": "q", "answer": "a"}\n{"q\n', "utf-8")
    assert "line 2 is not JSON" in failing(place, tmp_path, capsys, data=tmp_path / "bad.jsonl")
    assert "no config.json" in failing(place, tmp_path, capsys, model=tmp_path)
    assert "expected 1 or more" in failing(place, tmp_path, capsys, code=2, steps=0)
    assert "unknown 'adam'" in failing(place, tmp_path, capsys, code=2, optimizer="adam")
    assert "unrecognized" in failing(place, tmp_path, capsys, "--stepz", "3", code=2)
    with store.lock(tmp_path / "run"):
        assert "another process" in failing(place, tmp_path, capsys)
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = failing(place, tmp_path, capsys)
    assert "[import] Hugging Face transformers" in said and "pip install" in said


def test_the_module_dispatches_and_plans_without_loading(place, capsys):
    assert main(["nothing"]) == 2
    assert "expected finetune, evaluate" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert main(["finetune", "--plan", "--model", str(place / "model"), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert planned["together"] == sum(planned["bytes"].values()) > 0
    assert main(["finetune", "--plan", "--model", str(place / "model"), "--device", "cuda"]) == 0
    assert "CUDA context" in capsys.readouterr().out
    assert main(["finetune", "--presets"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"]["trials"] == 20


def test_the_command_runs_in_a_process_of_its_own():
    done = tiny_lm.rode("evaluate", "table", "/nowhere")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rode: error: [table]")


def test_the_benchmark_for_a_gpu_runs_here_with_a_tiny_model():
    pytest.importorskip("transformers")
    bench = runpy.run_path(str(ROOT / "bench" / "finetune_h200.py"))
    sizes = {"device": "cpu", "tiny": True, "steps": 2, "length": 24, "accumulation": 2}
    more = {"batch": 2, "prompt": 8, "new_tokens": 4, "rounds": 1, "family": "qwen3"}
    measured = bench["train"](argparse.Namespace(optimizer="rode", **sizes, **more))
    assert measured["step_seconds"] > measured["optimizer_seconds"] > 0
    assert measured["planned_together"] == sum(measured["planned_bytes"].values())
    speeds = bench["generate"](argparse.Namespace(**sizes, **more))
    assert set(speeds) == {"rode_tokens_per_second", "transformers_tokens_per_second"}
    config = bench["config_of"](argparse.Namespace(tiny=False, family="qwen3"))
    empty = checkpoint.empty_model(config, torch.bfloat16)
    assert sum(p.numel() for p in empty.parameters()) > 1e9
