# SPDX-License-Identifier: Apache-2.0
"""Steps captured into CUDA graphs, as PyTorch documents it."""

import pytest
import torch
from cuda_runs import Run, assert_equal, capturable, needs_cuda

import rode

pytestmark = needs_cuda


def warmed_up(run, *draws):
    """Steps on a side stream, as PyTorch asks for before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run.step(*draws)
    torch.cuda.current_stream().wait_stream(side)


def captured(run):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.optimizer.step()
    return graph


@capturable
def test_replays_are_steps_bit_for_bit(kind):
    run, plain = Run(kind), Run(kind)
    warmed_up(run, 0, 1, 2)
    graph = captured(run)
    for t in (3, 4, 5):
        run.draw(t)
        graph.replay()
    assert_equal(run, plain.step(*range(6)))
    assert run.optimizer.metadata() == plain.optimizer.metadata()
    assert run.optimizer.diagnostics() == plain.optimizer.diagnostics()


def network():
    torch.manual_seed(3)
    layers = [torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)]
    return torch.nn.Sequential(*layers).cuda()


def test_a_whole_iteration_is_captured_as_pytorch_documents_it():
    """Gradients are made in the capture, in the graph's own memory, on its own stream."""
    x, y = torch.randn(20, 32, device="cuda"), torch.randn(20, 16, device="cuda")
    models = [network(), network()]
    graphed, eager = (rode.RODE(m, route="all_matrices") for m in models)

    def iterate(model, optimizer, zero=True):
        if zero:
            optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            iterate(models[0], graphed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graphed.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = iterate(models[0], graphed, zero=False)
    losses, expected = [], []
    for t in range(10):
        if t == 5:  # a step outside, with gradients elsewhere; the graph's stay its own
            mine = [p.grad for p in models[0].parameters()]
            losses.append(iterate(models[0], graphed).item())
            for p, grad in zip(models[0].parameters(), mine, strict=True):
                p.grad = grad
        else:
            graph.replay()
            losses.append(loss.item())
    graphed.check()
    for _ in range(13):
        expected.append(iterate(models[1], eager).item())
    # The products of a captured backward pass may be other kernels than those outside.
    assert losses == pytest.approx(expected[3:], rel=1e-3)
    assert losses[-1] < losses[0]


@capturable
def test_rates_of_replays_are_those_sent_last(kind):
    run, plain = Run(kind), Run(kind)
    warmed_up(run, 0)
    plain.step(0)
    rates = [0.5, 0.25, 0.125]
    start = run.optimizer.param_groups[0]["lr"]
    run.optimizer.param_groups[0]["lr"] = start * rates[0]  # after the warm-up, before the capture
    graph = captured(run)
    for t, rate in enumerate(rates):
        plain.optimizer.param_groups[0]["lr"] = start * rate
        plain.step(t)
        run.optimizer.param_groups[0]["lr"] = start * rate
        if t > 0:
            run.optimizer.send_options()
        run.draw(t)
        graph.replay()
    assert_equal(run, plain)
    run.optimizer.param_groups[0]["lr"] = 0.0  # not sent: the graph keeps its rate
    before = run.weights()
    graph.replay()
    assert not torch.equal(before[0], run.weights()[0])


def test_a_rate_in_device_memory_is_read_outside_of_captures():
    rate = torch.tensor(1e-2, device="cuda")
    run, plain = Run(rode.SGD, lr=rate), Run(rode.SGD, lr=1e-2)
    warmed_up(run, 0)
    graph = captured(run)
    run.draw(1)
    graph.replay()
    rate.fill_(5e-3)
    run.optimizer.send_options()
    graph.replay()
    plain.step(0, 1)
    plain.optimizer.param_groups[0]["lr"] = rate.item()
    assert_equal(run, plain.step(1))


@capturable
def test_a_bad_gradient_in_a_replay_is_told_by_check(kind):
    run, clean = Run(kind), Run(kind).step(0, 1, 2)
    warmed_up(run, 0, 1)
    graph = captured(run)
    run.draw(2)
    run.params[0].grad[0, 0] = float("inf")
    graph.replay()
    with pytest.raises(rode.Error, match=r"'param\.0' holds NaN or Inf"):
        run.optimizer.check()
    run.draw(2)
    graph.replay()
    run.optimizer.check()
    assert_equal(run, clean)


def test_what_cannot_be_captured_says_so():
    run = Run(rode.RODE)
    run.draw(0)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(rode.Error, match="warm-up"), torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        run.optimizer.step()
    run.step(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.optimizer.step()
        for read in (run.optimizer.check, run.optimizer.diagnostics, run.optimizer.state_dict):
            with pytest.raises(rode.Error, match="captured"):
                read()
    graph.replay()
    assert run.optimizer.metadata()["rode.step"] == "2"
    soap = Run(rode.SOAP).step(0)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(rode.Error, match="factorizes on the host"), torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        soap.optimizer.step()
    soap.step(1).optimizer.check()


def test_a_graph_outlives_a_change_of_the_groups():
    run, plain = Run(rode.SGD, momentum=0.0), Run(rode.SGD, momentum=0.0)
    warmed_up(run, 0)
    graph = captured(run)
    extra = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    run.optimizer.add_param_group({"params": [extra]})
    run.step(1)
    run.draw(2)
    graph.replay()
    plain.step(0, 1, 2)
    for p, q in zip(run.params, plain.params, strict=True):
        assert torch.equal(p, q)
