# SPDX-License-Identifier: Apache-2.0
"""The decoder of bench/small_lm.py: Qwen2's form at a quarter of the 114M model's width."""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional as F

INITS = ("0.02", "fan_in")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The defaults keep the 114M model's ratios: heads of 64, three queries a key, 8/3 in SwiGLU."""

    vocabulary: int = 256
    layers: int = 4
    width: int = 192
    heads: int = 3
    kv_heads: int = 1
    hidden: int = 512
    context: int = 256


def rotary_table(context: int, head: int, base: float = 10000.0) -> torch.Tensor:
    """Cosines and sines, (2, context, head); both halves of a head share their angles."""
    rates = base ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), rates).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat((-high, low), dim=-1) * table[1]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Block(nn.Module):
    """Attention with grouped keys and values, then SwiGLU; biases on q, k, v only."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head = shape.width // shape.heads
        narrow = self.kv_heads * self.head
        self.norm1 = RMSNorm(shape.width)
        self.q = nn.Linear(shape.width, shape.width)
        self.k = nn.Linear(shape.width, narrow)
        self.v = nn.Linear(shape.width, narrow)
        self.o = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = RMSNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def attend(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(y: torch.Tensor, heads: int) -> torch.Tensor:
            return y.view(batch, length, heads, self.head).transpose(1, 2)

        q = rotate(split(self.q(x), self.heads), table)
        k = rotate(split(self.k(x), self.kv_heads), table)
        v = split(self.v(x), self.kv_heads)
        # Repeated by hand: the fast fp32 kernels take no grouped heads.
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x), table)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Bytes to logits; the head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        table = rotary_table(shape.context, shape.width // shape.heads)
        self.register_buffer("table", table, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        table = self.table[:, : tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, table)
        return F.linear(self.norm(x), self.embedding.weight)


@torch.no_grad()
def initialise(model: Decoder, kind: str, seed: int) -> None:
    """Gaussian weights, zero biases, norms of one. The deviation of a matrix is 0.02 (Qwen2's), or
    1/sqrt(fan-in); that of the embedding, which is the head too, is 0.02 in both.

    Drawn on the CPU, so that a seed means the same weights on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fan_in = module.weight.shape[1]
            deviation = 1 / math.sqrt(fan_in) if kind == "fan_in" else 0.02
        elif isinstance(module, nn.Embedding):
            deviation = 0.02
        else:
            continue
        drawn = torch.randn(module.weight.shape, generator=generator) * deviation
        module.weight.copy_(drawn)
        if getattr(module, "bias", None) is not None:
            module.bias.zero_()
