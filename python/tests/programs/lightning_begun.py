"""Lightning with a module and an optimiser made outside of the training function. Rank 1 dies by kill -9 before the first commit of a
step. Prints whether each training began with the module as it was made, and the optimiser's state empty."""

import json

import torch
from dying import die_once
from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

BATCH, KILLED_AT = 4, 3


class MadeOutside(Line):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 0:
            begun.append(torch.equal(self.layer.weight, made_weight) and not self.optimizer.state_dict()["state"])
        if batch_idx == KILLED_AT:
            die_once(1)

    def configure_optimizers(self):
        return self.optimizer


en.init()
module = MadeOutside()
made_weight = module.layer.weight.detach().clone()
rows = rows_of(2 * KILLED_AT * BATCH * en.size())
state = LightningState(en.ElasticDistributedSampler(rows))
begun = []


@en.elastic.run
def train(state):
    trainer = trainer_of(state, batches_per_commit=100, max_epochs=1)
    trainer.fit(module, DataLoader(rows, BATCH, sampler=state.sampler), ckpt_path=state.ckpt_path)


train(state)
print(json.dumps({"rank": en.rank(), "begun": begun}), flush=True)
