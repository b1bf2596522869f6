"""A module of one layer, its samples and the trainer that programs with Lightning share."""

import torch
from lightning.pytorch import LightningModule, Trainer

import elastic_node.torch as en
from elastic_node.integrations.lightning import CommitStateCallback, ElasticStrategy


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def rows_of(samples):
    """So many samples, the same on each rank."""
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def trainer_of(state, callbacks=(), batches_per_commit=1, **settings):
    """Of a training on CPUs that prints and saves nothing."""
    return Trainer(
        accelerator="cpu",
        devices=en.local_size(),
        strategy=ElasticStrategy(state),
        callbacks=[*callbacks, CommitStateCallback(state, batches_per_commit)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
