# SPDX-License-Identifier: Apache-2.0
"""What the tests on a GPU share: optimizers on the problems of tests/trajectory."""

import pytest
import torch
from conftest import PUBLISHED
from problems import problem, with_soap_state

import rode
from rode import _engine

needs_cuda = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _engine.with_cuda(), reason="the package was built without CUDA"),
]

STEPS = 5
SHAPES = [(48, 64), (96, 32), (40,), ()]
capturable = pytest.mark.parametrize(
    "kind",
    [
        rode.RODE,
        rode.Muon,
        rode.MARSM,
        rode.AdEMAMix,
        rode.Adafactor,
        rode.AdamW,
        rode.Lion,
        rode.SGD,
    ],
)


class Run:
    """Parameters with an optimizer; two of the same kind begin alike and see the same gradients."""

    def __init__(self, kind, device="cuda", dtype=torch.float32, shapes=None, **options):
        shapes = shapes or ([(24, 32)] if kind is rode.SOAP else SHAPES)
        self.problems = [problem(s, STEPS, spectrum="spaced") for s in shapes]
        if kind is rode.SOAP:  # a basis that is unique
            self.problems = [with_soap_state(p) for p in self.problems]
        self.params = [
            torch.nn.Parameter(torch.tensor(p.weight).to(device, dtype)) for p in self.problems
        ]
        self.optimizer = kind(self.params, **{**PUBLISHED.get(kind, {}), **options})
        for p, given in zip(self.params, self.problems, strict=True):
            if not given.state:
                continue
            state = {key: torch.tensor(value).to(device) for key, value in given.state.items()}
            if options.get("rounding") == "exact":
                state["low_bits"] = torch.zeros_like(p, dtype=torch.uint16)
            self.optimizer.state[p] = state

    def draw(self, t):
        """The gradients of draw t, into the same memory where there is some."""
        for p, given in zip(self.params, self.problems, strict=True):
            grad = torch.tensor(given.grads[t % STEPS]).to(p.device, p.dtype)
            if p.grad is None:
                p.grad = grad
            else:
                p.grad.copy_(grad)

    def step(self, *draws):
        for t in draws:
            self.draw(t)
            self.optimizer.step()
        return self

    def weights(self):
        return [p.detach().double().cpu() for p in self.params]

    def starts(self):
        return [torch.tensor(p.weight).double() for p in self.problems]


def assert_equal(a, b):
    """Weights and state, bit for bit."""
    for i, (p, q) in enumerate(zip(a.params, b.params, strict=True)):
        assert torch.equal(p, q), i
        for key, value in a.optimizer.state[p].items():
            assert torch.equal(value, b.optimizer.state[q][key]), (i, key)
