# SPDX-License-Identifier: Apache-2.0
"""Residual networks restated in plain PyTorch from the paper (He et al., 2015)."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Convolutions of (kernel, outputs, stride), and a shortcut around them."""

    def __init__(self, inputs, convolutions):
        super().__init__()
        self.count = len(convolutions)
        outputs, stride = inputs, 1
        for i, (kernel, width, step) in enumerate(convolutions, start=1):
            layer = nn.Conv2d(outputs, width, kernel, step, kernel // 2, bias=False)
            setattr(self, f"conv{i}", layer)
            setattr(self, f"bn{i}", nn.BatchNorm2d(width))
            outputs, stride = width, stride * step
        self.downsample = None
        if outputs != inputs or stride != 1:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = functional.relu(y)
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class Network(nn.Module):
    def __init__(self, stem, pool, stages, classes):
        super().__init__()
        kernel, width, stride = stem
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool, self.stages = pool, len(stages)
        for i, stage in enumerate(stages, start=1):
            blocks = []
            for convolutions in stage:
                blocks.append(Block(width, convolutions))
                width = convolutions[-1][1]
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.fc = nn.Linear(width, classes)

    def forward(self, images):
        x = functional.relu(self.bn1(self.conv1(images)))
        if self.pool:
            x = functional.max_pool2d(x, 3, 2, 1)
        for i in range(1, self.stages + 1):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


def resnet50(classes):
    def bottleneck(width, stride):
        return [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]

    stages = [
        [bottleneck(width, 2 if i == 0 and width > 64 else 1) for i in range(count)]
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3))
    ]
    return Network((7, 64, 2), True, stages, classes)


def small_resnet(classes, width, layers):
    """Three stages of basic blocks; what three does not divide goes to the first ones."""
    counts = [layers // 3 + (1 if i < layers % 3 else 0) for i in range(3)]
    stages = [
        [[(3, width << s, 2 if i == 0 and s > 0 else 1), (3, width << s, 1)] for i in range(count)]
        for s, count in enumerate(counts)
    ]
    return Network((3, width, 1), False, stages, classes)
