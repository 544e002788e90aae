# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with RODE in plain PyTorch: python examples/pytorch_quickstart.py"""

import torch

import rode


def main(steps: int = 200) -> float:
    torch.manual_seed(0)
    teacher = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))

    # Matrices by RODE, biases by AdamW; a scheduler moves all rates together.
    optimizer = rode.RODE(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    print(optimizer.routing_table())

    for t in range(steps):
        inputs = torch.randn(128, 32)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if t % 50 == 0 or t == steps - 1:
            print(f"step {t:4d}  loss {loss.item():.5f}")
    return loss.item()


if __name__ == "__main__":
    main()
