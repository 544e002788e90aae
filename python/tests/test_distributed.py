# SPDX-License-Identifier: Apache-2.0
"""Several processes: DistributedDataParallel trains as one process does; matrices on meshes of one
process."""

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
def test_a_matrix_on_a_mesh_of_one_is_stepped_as_a_plain_one(one_process, kind):
    """Of more processes: test_wholes.py."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    value, grad = torch.randn(4, 4), torch.randn(4, 4)
    p = torch.nn.Parameter(tensor.distribute_tensor(value, mesh, [tensor.Shard(0)]))
    plain = torch.nn.Parameter(value.clone())
    p.grad, plain.grad = tensor.distribute_tensor(grad, mesh, [tensor.Shard(0)]), grad
    for parameter in (p, plain):
        optimizer = kind([("layer", parameter)])
        for _ in range(2):
            optimizer.step()
    assert torch.equal(p.full_tensor(), plain) and not torch.equal(plain, value)


def test_matrices_that_no_owner_can_get_are_refused_with_a_remedy(one_process):
    tensor = pytest.importorskip("torch.distributed.tensor")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    grid = dist.device_mesh.init_device_mesh("cpu", (1, 1))
    first = tensor.distribute_tensor(torch.ones(4, 4), mesh, [tensor.Shard(0)])
    second = tensor.distribute_tensor(torch.ones(4, 4), grid, [tensor.Shard(0), tensor.Shard(1)])
    named = [("a", torch.nn.Parameter(first)), ("b", torch.nn.Parameter(second))]
    with pytest.raises(rode.Error, match="'a' and 'b' are DTensors on different meshes"):
        rode.RODE(named)
    with pytest.raises(rode.Error, match="'a' is a DTensor, which has a mesh of its own"):
        rode.RODE(named[:1], process_group=True)
    optimizer = rode.RODE(named[:1])
    named[0][1].grad = torch.ones_like(named[0][1])
    optimizer.step()
    optimizer.add_param_group({"params": [("more", torch.nn.Parameter(torch.ones(3)))]})
    with pytest.raises(rode.Error, match="make a new optimizer"):
        optimizer.step()
    copy = rode.RODE(named[:1])
    with pytest.raises(rode.Error, match="named_state is the whole state"):
        copy.named_state()


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
