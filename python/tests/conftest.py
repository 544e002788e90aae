# SPDX-License-Identifier: Apache-2.0
"""Problems and the command line that the tests of the Python package share."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import rode

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Problems and oracles of the engine's own tests, behind this folder's names.
sys.path.append(str(ROOT / "tests" / "trajectory"))
torch.set_num_threads(1)  # the problems are small, and other suites may run beside


def find_cli() -> pathlib.Path | None:
    given = os.environ.get("RODE_BIN")
    if given:
        return pathlib.Path(given)
    places = [ROOT / "build" / folder / "rode" for folder in ("bin", "ci/bin", "dev/bin")]
    return next((path for path in places if path.exists()), None)


@pytest.fixture(scope="session")
def cli():
    """Runs the command line; skips where it is not built."""
    program = find_cli()
    if program is None:
        pytest.skip("the command line is not built; run `make build` or set RODE_BIN")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20260)


class TinyModel(torch.nn.Module):
    """An embedding, two layers, a norm and a head: every kind of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.inner = torch.nn.Linear(16, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.outer = torch.nn.Linear(24, 16, bias=False)
        self.head = torch.nn.Linear(16, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.inner(self.embed(tokens))))
        return self.head(self.outer(hidden))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0):
    """Losses of steps on fixed data."""
    losses = []
    for t in range(first, first + steps):
        tokens = torch.randint(0, 50, (8, 5), generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ((tokens * 7 + 3) % 50).flatten()
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


KINDS = [
    rode.RODE,
    rode.Muon,
    rode.MARSM,
    rode.SOAP,
    rode.AdEMAMix,
    rode.Lion,
    rode.Adafactor,
    rode.AdamW,
    rode.SGD,
]
# Of the task files and the command line, where Python has torch's: rates at which the problems
# here move visibly.
PUBLISHED = {
    rode.AdamW: {"lr": 1.544e-4, "betas": (0.9, 0.95), "weight_decay": 1e-2},
    rode.SGD: {"lr": 1e-1, "momentum": 0.9, "weight_decay": 5e-4},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def same(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether all parameters are equal bit for bit."""
    return all(
        torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )
