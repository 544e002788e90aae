# SPDX-License-Identifier: Apache-2.0
"""RODE in PyTorch Lightning: python examples/lightning_module.py

Needs the package lightning.
"""

import lightning
import torch

import rode


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = rode.RODE(self)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


def main(epochs: int = 10) -> tuple[float, float]:
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = Regression()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="auto",
        devices=1,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
    print(f"loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}")
    return model.losses[0], model.losses[-1]


if __name__ == "__main__":
    main()
