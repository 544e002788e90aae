# SPDX-License-Identifier: Apache-2.0
"""RODE in Hugging Face's Trainer, on a GPT-2 of toy size: python examples/huggingface_trainer.py

Needs the packages transformers and accelerate.
"""

import tempfile

import torch
import transformers

import rode


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a start: easy to learn, without a download."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 60
        return {"input_ids": tokens, "labels": tokens}


def main(steps: int = 40) -> tuple[float, float]:
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    # The factory gets the model: Conv1D's weights are recognised as transposed, and the head is
    # tied to the embedding. Given only the class, Trainer builds an optimizer from bare tensors.
    optimizer = (rode.trainer_factory(rode.RODE), {"lr": 5e-2, "lr_rest": 1e-2})
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            logging_steps=1,
            save_steps=steps // 2,
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=Counting(), optimizer_cls_and_kwargs=optimizer
        )
        trainer.train()  # resume_from_checkpoint=True continues after an interruption
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    losses = [float(loss) for loss in losses]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main()
