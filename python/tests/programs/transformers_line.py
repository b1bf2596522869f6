"""A model of one layer, its samples and the settings of HF Trainer that programs with a dying rank share."""

import os

import torch
from transformers import TrainingArguments


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


def rows_of(samples):
    """So many samples, the same on each rank."""
    drawn = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": x.sum()} for x in drawn]


def arguments(**settings):
    """Of a training on CPUs that prints nothing; checkpoints of the trainer lie in the folder of control files."""
    return TrainingArguments(os.environ["CONTROL"], use_cpu=True, report_to=[], disable_tqdm=True, **settings)
