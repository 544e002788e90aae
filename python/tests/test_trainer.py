# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer makes the optimizer itself: from the class, or from a factory that gets
the model; and resumes after a kill."""

import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch

import rode

STEPS, SAVED, KILLED = 6, 2, 5


def trainer(folder, optimizer, **arguments):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    settings = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_steps=SAVED,
        weight_decay=0.125,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"input_ids": t, "labels": t} for t in torch.arange(16 * 24).view(16, 24)[:, :16] % 60]
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        settings,
        train_dataset=rows,
        optimizer_cls_and_kwargs=optimizer,
        **arguments,
    )


def made(optimizer):
    return rode.trainer_factory(rode.RODE), {"lr": 1e-2, "lr_rest": 1e-2, **optimizer}


def run_until_killed(folder):
    """Ends as by the kernel's hand in the middle of training."""
    import transformers

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            if state.global_step == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer(folder, made({}), callbacks=[Kill()]).train()


def test_the_class_itself_takes_what_trainer_writes_into_its_groups(tmp_path):
    run = trainer(tmp_path, (rode.RODE, {"lr": 1e-2, "lr_rest": 1e-2}))
    groups = run.create_optimizer().param_groups
    assert [group["weight_decay_rest"] for group in groups] == [0.125, 0.0]
    run.train()
    assert run.state.global_step == STEPS


@pytest.mark.parametrize("kind", [rode.Muon, rode.SOAP, rode.MARSM])
def test_a_factory_sees_which_weights_are_embeddings(tmp_path, kind):
    bare = trainer(tmp_path, (kind, {})).create_optimizer()
    rules = [line.split() for line in bare.routing_table().splitlines()]
    # What tensors without names come to.
    assert ["(64,", "16)", "matrix"] in [row[1:4] for row in rules]
    options = {"overrides": {"*.mlp.c_fc.weight": "rest"}}
    table = trainer(tmp_path, (rode.trainer_factory(kind), options)).create_optimizer()
    rules = {line.split()[0]: line for line in table.routing_table().splitlines()}
    assert " rest " in rules["transformer.wte.weight"]
    assert " rest " in rules["transformer.wpe.weight"]
    assert " rest " in rules["transformer.h.0.mlp.c_fc.weight"]
    assert " matrix " in rules["transformer.h.0.attn.c_attn.weight"]


def test_a_trainer_that_hands_over_tensors_is_told(tmp_path):
    with pytest.raises(rode.OptionError, match=r"hands over tensors.*optimizers=\(optimizer, None"):
        rode.trainer_factory(rode.Muon)([{"params": []}], lr=1.0)


@pytest.mark.filterwarnings("ignore")
def test_training_that_was_killed_resumes_to_the_same_weights(tmp_path):
    through = trainer(tmp_path / "through", made({}))
    through.train()
    command = [sys.executable, __file__, str(tmp_path / "killed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "killed" / f"checkpoint-{STEPS}").exists()
    resumed = trainer(tmp_path / "killed", made({}))
    resumed.train(resume_from_checkpoint=True)
    pairs = zip(through.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    assert resumed.state.global_step == STEPS


def shapes(*sizes):
    return [torch.nn.Parameter(torch.empty(size, device="meta")) for size in sizes]


BLOCK = [(4096, 4096)] * 4 + [(11008, 4096)] * 2 + [(4096, 11008)]
FUSED = [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)]
SCANS = [(10576, 2560), (2560, 5120)] * 3


@pytest.mark.parametrize(
    ("sizes", "warned"),
    [
        ([(50257, 768), (768, 768), (3072, 768), (768, 3072)], "50257 x 768"),
        ([(32000, 4096), *BLOCK, (32000, 4096)], "32000 x 4096"),
        ([(32000, 8192), (28672, 8192), (8192, 28672)], "32000 x 8192"),
        (BLOCK, None),
        (FUSED, None),
        (SCANS, None),
        ([(24576, 3072), (3072, 24576)], None),
        ([(4096, 16), (16, 4096), (14336, 16), (16, 14336)], None),  # factors of low rank
        ([(1000, 64), (64, 1000)], None),
    ],
)
def test_tensors_that_look_like_a_vocabulary_are_warned_of(sizes, warned):
    from rode.routing import warn_of_vocabularies

    group = {"rule": "auto", "route": "language", "params": shapes(*sizes)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_vocabularies([group])
        warn_of_vocabularies([{**group, "rule": "matrix"}])
        warn_of_vocabularies([{**group, "param_names": ["w"] * len(sizes)}])
    assert [w.message.args[0].count(warned) for w in caught] == ([1] if warned else [])


def test_the_warning_points_at_the_line_that_made_the_optimizer():
    p = torch.nn.Parameter(torch.zeros(8192, 8))
    with pytest.warns(UserWarning, match="8192 x 8 without a name.*trainer_factory") as caught:
        rode.RODE([p])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rode.RODE([("embedding", p)])
        rode.AdamW([p])
        rode.RODE([{"params": [p], "rule": "matrix"}])


if __name__ == "__main__":
    torch.set_num_threads(1)  # as conftest does for the runs it is compared with
    run_until_killed(sys.argv[1])
