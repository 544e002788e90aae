# SPDX-License-Identifier: Apache-2.0
"""Several processes: DistributedDataParallel trains as one process does; shards of matrices are
refused."""

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from conftest import TinyModel

import rode

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
STEPS, WORLD, TIMEOUT_S = 4, 2, 120


def train(model, optimizer, rank, world):
    """Each process sees its part of the batch; equal parts, so means of means are means."""
    for t in range(STEPS):
        tokens = torch.randint(0, 50, (8, 5), generator=torch.Generator().manual_seed(t))
        part = tokens.chunk(world)[rank]
        optimizer.zero_grad()
        logits = model(part).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, ((part * 7 + 3) % 50).flatten()).backward()
        optimizer.step()


def process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    for name in ("RODE", "Muon", "AdamW"):
        torch.manual_seed(4)
        model = torch.nn.parallel.DistributedDataParallel(TinyModel())
        train(model, getattr(rode, name)(model.module), rank, WORLD)
        torch.save(model.module.state_dict(), f"{folder}/{name}.{rank}.pt")
    while not all(os.path.exists(f"{folder}/{name}.{peer}.pt") for peer in range(WORLD)):
        time.sleep(0.01)
    # Without gloo's destructors: now and then they wait for a peer that is gone.
    os._exit(0)


def test_data_parallel_training_is_that_of_one_process(tmp_path):
    """The other processes run this file."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)], env=environment)
        for rank in range(WORLD)
    ]
    try:
        assert [p.wait(timeout=TIMEOUT_S) for p in running] == [0] * WORLD
    finally:
        for p in running:
            p.kill()
    for name in ("RODE", "Muon", "AdamW"):
        torch.manual_seed(4)
        model = TinyModel()
        start = {key: value.clone() for key, value in model.state_dict().items()}
        train(model, getattr(rode, name)(model), 0, 1)
        first, second = (torch.load(tmp_path / f"{name}.{rank}.pt") for rank in range(WORLD))
        for key, alone in model.state_dict().items():
            assert torch.equal(first[key], second[key]), (name, key)
            # Gradients are sums of two halves here and of one batch there, in fp32, and Adam's
            # first steps divide them by their own size: entries near 0 may differ more.
            error, way = first[key] - alone, alone - start[key]
            assert torch.linalg.norm(error) <= 1e-3 * torch.linalg.norm(way), (name, key)


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [rode.RODE, rode.Muon, rode.MARSM, rode.SOAP, rode.Adafactor])
def test_shards_of_matrices_are_refused_with_a_remedy(one_process, kind):
    tensor = pytest.importorskip("torch.distributed.tensor")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    p = torch.nn.Parameter(tensor.distribute_tensor(torch.randn(4, 4), mesh, [tensor.Shard(0)]))
    p.grad = torch.ones_like(p)
    rest = "" if kind is rode.Adafactor else r"route it to the rest .*'layer': 'rest'.*"
    text = rf"'layer' is a DTensor.*; {rest}.*DistributedDataParallel"
    with pytest.raises(rode.Error, match=text):
        kind([("layer", p)]).step()


def test_parameters_of_fsdp_are_refused_with_a_remedy(one_process):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    fsdp.fully_shard(module, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    with pytest.raises(rode.Error, match=r"'0\.weight' is a DTensor.*DistributedDataParallel"):
        rode.RODE(module).step()


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
