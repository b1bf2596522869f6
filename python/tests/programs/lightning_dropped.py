"""Lightning that drops last batches, on two ranks. It begins where an epoch has less than a batch left for each rank; then with
fewer samples than a batch of each rank has. Prints the batches and validations of the first one, its epochs and its rate,
and the refusal of the second one."""

import json

import torch
from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

SAMPLES, BATCH, EPOCHS = 12, 4, 3
sizes, validated = [], []


class MeasuredLine(Line):
    def training_step(self, batch, batch_idx):
        sizes.append(len(batch[0]))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        validated.append(self.current_epoch)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def trained(state, module, samples):
    trainer = trainer_of(state, max_epochs=EPOCHS, num_sanity_val_steps=0)
    rows = rows_of(samples)
    checked = DataLoader(rows_of(en.size()), BATCH)
    trainer.fit(module, DataLoader(rows, BATCH, sampler=state.sampler, drop_last=True), checked)
    return trainer.current_epoch, trainer.optimizers[0].param_groups[0]["lr"]


en.init()
state = LightningState(en.ElasticDistributedSampler(rows_of(SAMPLES)))
# Two ranks have two samples each left.
state.sampler.record_batch(0, 4)


@en.elastic.run
def train(state):
    en.init_process_group()
    epochs, rate = trained(state, MeasuredLine(), SAMPLES)
    few = BATCH * en.size() - 2
    refusal = None
    try:
        trained(LightningState(en.ElasticDistributedSampler(rows_of(few))), Line(), few)
    except ValueError as error:
        refusal = str(error)
    return {"epochs": epochs, "rate": rate, "refusal": refusal}


print(json.dumps({**train(state), "sizes": sizes, "validated": validated}), flush=True)
