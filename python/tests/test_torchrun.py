# SPDX-License-Identifier: Apache-2.0
"""torchrun, with a Hugging Face model under fully_shard and with Trainer under FSDP2."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("torch.distributed.fsdp")
if not dist.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

import torchrun_ranks  # noqa: E402
from torchrun_ranks import WORLD, made_model, train, train_with_trainer, whole  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(WORLD), torchrun_ranks.__file__, str(folder)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def test_a_model_of_transformers_under_fully_shard_ends_where_one_process_does(ranks):
    alone = train()
    start = whole(made_model())
    assert "batch of matrices" in alone["rules"]
    for found in ranks:
        for name, value in found["model"]["weights"].items():
            assert torch.equal(value, alone["weights"][name]), name
    moved = [
        name for name, value in alone["weights"].items() if not torch.equal(value, start[name])
    ]
    assert any(name.endswith("gate_up_proj") for name in moved)


def test_trainer_under_fsdp2_ends_where_trainer_alone_does(ranks, tmp_path):
    """The optimizer is made before the parameters become DTensors."""
    alone = train_with_trainer(str(tmp_path))
    start = whole(made_model())
    for found in ranks:
        assert found["trainer"]["sharded"]
        for name, value in found["trainer"]["weights"].items():
            name = name.replace("_checkpoint_wrapped_module.", "")
            expected = alone["weights"][name]
            moved = torch.linalg.norm(expected - start[name])
            assert torch.linalg.norm(value - expected) <= 1e-3 * moved + 1e-6, name
    first = next(name for name in start if name.endswith("q_proj.weight"))
    assert not torch.equal(alone["weights"][first], start[first])
