# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_torchrun.py do: torchrun starts two of them once."""

import os
import sys

import torch
import torch.distributed as dist
import transformers

import rode

WORLD, STEPS = 2, 4


def made_model():
    config = transformers.Qwen3MoeConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=5,
        num_experts_per_tok=2,
    )
    torch.manual_seed(3)
    return transformers.Qwen3MoeForCausalLM(config)


def tokens():
    return torch.arange(24).view(3, 8) * 7 % 40


def whole(model):
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for name, p in model.named_parameters()
    }


def train(shard=False):
    """Every process has the same batch, so that its gradient is that of one process."""
    model = made_model()
    if shard:
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = rode.RODE(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=tokens(), labels=tokens()).loss.backward()
        optimizer.step()
    return {"weights": whole(model), "rules": optimizer.routing_table()}


def allow_fsdp_on_cpus():
    """Accelerate takes FSDP for accelerators alone, though torch has it on CPUs."""
    from accelerate.state import AcceleratorState, DistributedType

    own = AcceleratorState.__init__

    def init(self, *arguments, fsdp_plugin=None, **more):
        own(self, *arguments, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = init


def train_with_trainer(folder, **more):
    model = made_model()
    arguments = transformers.TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    row = {"input_ids": tokens()[0], "labels": tokens()[0]}
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[row] * 16,  # in whatever order
        # An adaptive radius divides by its own first gradients: rounding would show much larger.
        optimizer_cls_and_kwargs=(rode.trainer_factory(rode.RODE), {"radius": "learned"}),
    )
    trainer.train()
    sharded = all(hasattr(p, "full_tensor") for p in model.parameters())
    return {"weights": whole(trainer.accelerator.unwrap_model(model)), "sharded": sharded}


def process(folder):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    found = {"model": train(shard=True)}
    allow_fsdp_on_cpus()
    found["trainer"] = train_with_trainer(
        folder,
        fsdp=True,
        fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen3MoeDecoderLayer"]},
    )
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # without gloo's destructors, which may wait for a peer that is gone


if __name__ == "__main__":
    process(sys.argv[1])
