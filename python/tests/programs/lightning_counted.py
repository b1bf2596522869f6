"""Lightning with a setting that counts the batches of an epoch. A rank dies by kill -9 near the end of the second epoch. Prints which
batches were trained and validated in each epoch, and how many steps the schedule was made for.

Arguments: the setting, its value as JSON."""

import json
import sys

import torch
from dying import die_once
from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

EPOCHS, BATCHES, BATCH = 3, 8, 2
SETTING = {sys.argv[1]: json.loads(sys.argv[2])}
DIES_AT = (1, 5)


class CountedLine(Line):
    def place(self):
        return state.sampler.epoch, state.sampler.processed_num // (BATCH * en.size())

    def on_train_batch_start(self, batch, batch_idx):
        if self.place() == DIES_AT:
            die_once(1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        state.trained.append(state.sampler.epoch)

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_start(self):
        state.validated.append(list(self.place()))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        steps.append(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))]


en.init()
rows = rows_of(BATCHES * BATCH * en.size())
state = LightningState(en.ElasticDistributedSampler(rows), trained=[], validated=[])
steps = []


@en.elastic.run
def train(state):
    trainer = trainer_of(state, max_epochs=EPOCHS, num_sanity_val_steps=0, **SETTING)
    checked = DataLoader(rows_of(en.size()), BATCH)
    trainer.fit(CountedLine(), DataLoader(rows, BATCH, sampler=state.sampler), checked, ckpt_path=state.ckpt_path)


train(state)
trained = [state.trained.count(epoch) for epoch in range(EPOCHS)]
print(json.dumps({"trained": trained, "validated": state.validated, "steps": sorted(set(steps))}), flush=True)
