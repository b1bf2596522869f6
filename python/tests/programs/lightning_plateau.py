"""Lightning whose learning rate follows a value that never gets better. A rank dies by kill -9 in the middle of the second epoch.
Prints the learning rate of each epoch's first batch. Argument: whether the value is one of the "validation", of the "training" batches
or of the last training batch ("step")."""

import json
import sys

import torch
from dying import die_once
from lightning.pytorch.callbacks import EarlyStopping
from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

WATCHED = sys.argv[1]
EPOCHS, BATCHES, BATCH = 4, 4, 2
MONITOR = {"validation": "watched", "training": "loss_epoch", "step": "last"}[WATCHED]


class WatchedLine(Line):
    def on_train_batch_start(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2:
            die_once(1)
        state.rates[self.current_epoch] = self.trainer.optimizers[0].param_groups[0]["lr"]

    def training_step(self, batch, batch_idx):
        self.log("loss", 1.0, sync_dist=True, on_step=True, on_epoch=True)
        self.log("last", 1.0, sync_dist=True, on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("watched", 1.0, sync_dist=True)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": MONITOR}}


en.init()
rows = rows_of(BATCHES * BATCH * en.size())
state = LightningState(en.ElasticDistributedSampler(rows), rates={})


@en.elastic.run
def train(state):
    trainer = trainer_of(state, [EarlyStopping(MONITOR, patience=EPOCHS)], max_epochs=EPOCHS)
    checked = DataLoader(rows_of(en.size()), BATCH)
    trainer.fit(WatchedLine(), DataLoader(rows, BATCH, sampler=state.sampler), checked, ckpt_path=state.ckpt_path)


train(state)
print(json.dumps({"rates": [state.rates[epoch] for epoch in range(EPOCHS)]}), flush=True)
