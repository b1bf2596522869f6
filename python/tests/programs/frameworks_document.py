"""Trains by an example of docs/frameworks.md as it is printed there, with a model and samples of its own. The argument is the
example's heading. Prints the weights that this rank ends with."""

import json
import os
import re
import sys
from pathlib import Path

HEADING = sys.argv[1]
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
SAMPLES, WIDTH = 96, 4

example = re.search(rf"^## {HEADING}\n.*?```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)[1]
# Frameworks write their files here.
os.chdir(os.environ["CONTROL"])


def of_keras():
    """The names that the example takes for granted, and the function that returns the weights."""
    import keras
    import numpy

    import elastic_node as en

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    x = numpy.random.default_rng(int(os.environ["RANK"])).normal(size=(SAMPLES, WIDTH))
    y = x.sum(axis=1, keepdims=True)
    names = {"en": en, "keras": keras, "model": model, "x": x, "y": y}
    return names, lambda: [weight.tolist() for weight in model.get_weights()]


def of_torch():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import elastic_node.torch as en

    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    names = {"en": en, "torch": torch, "DataLoader": DataLoader, "data": TensorDataset(x, x.sum(1, keepdim=True)), "model": model}
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    if HEADING == "Lightning":
        from lightning.pytorch import LightningModule, Trainer

        class Digits(LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = model

            def training_step(self, batch, batch_idx):
                x, y = batch
                return torch.nn.functional.mse_loss(self.layer(x), y)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.05)

        names.update(Trainer=Trainer, Digits=Digits)
    if HEADING == "HF Trainer":
        from transformers import TrainingArguments

        class Line(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = model

            def forward(self, x, labels):
                return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}

        rows = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]
        names.update(TrainingArguments=TrainingArguments, model=Line(), data=rows)
    return names, lambda: [part.tolist() for part in model.parameters()]


names, weights = of_keras() if HEADING == "Keras" else of_torch()
en = names["en"]
en.init()
exec(compile(example, str(DOCUMENT), "exec"), names)
names["train"](names["state"])
print(json.dumps({"rank": en.rank(), "weights": weights()}), flush=True)
