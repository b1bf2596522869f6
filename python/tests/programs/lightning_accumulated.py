"""Accumulates gradients of four batches with Lightning, in epochs of six. Prints at each commit the number of batches that wait
for a step, and the steps."""

import json
import sys

from lightning.pytorch import Callback
from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

EPOCHS, BATCHES, BATCH = 2, 6, 2
waiting, commits = [], []


class NotedState(LightningState):
    def commit(self):
        commits.append([len(waiting), self.checkpoint["global_step"]])
        super().commit()


class ByHand(Line):
    """Steps by itself, by an optimiser whose steps Lightning does not count."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()
        waiting.clear()


class Notes(Callback):
    def on_after_backward(self, trainer, module):
        waiting.append(trainer.fit_loop.batch_idx)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        waiting.clear()


en.init()
rows = rows_of(BATCHES * BATCH * en.size())
state = NotedState(en.ElasticDistributedSampler(rows))


@en.elastic.run
def train(state):
    settings = {"accumulate_grad_batches": 4} if sys.argv[1] == "automatic" else {}
    trainer = trainer_of(state, [Notes()], int(sys.argv[2]), max_epochs=EPOCHS, **settings)
    module = Line() if sys.argv[1] == "automatic" else ByHand()
    trainer.fit(module, DataLoader(rows, BATCH, sampler=state.sampler))


train(state)
print(json.dumps({"commits": commits}), flush=True)
