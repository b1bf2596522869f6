"""Lightning that survives: of three ranks one dies by kill -9 in the middle of an epoch; two go on, until another one has
come. Prints what each rank ends with."""

import hashlib
import json

import torch
from dying import die_once, until_there_are
from lightning.pytorch import Callback
from lightning_line import Line, trainer_of
from torch.utils.data import DataLoader

import elastic_node.torch as en
from elastic_node import _codec
from elastic_node.integrations.lightning import LightningState

SAMPLES, BATCH, EPOCHS, KILLED_AT, GROWN_AT = 240, 4, 3, 27, 57


class Rows(torch.utils.data.Dataset):
    """Each row names itself, so that it can be counted."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return index, x, x.sum()


class SurvivingLine(Line):
    def training_step(self, batch, batch_idx):
        if self.global_step == KILLED_AT:
            die_once(1)
        if self.global_step == GROWN_AT:
            until_there_are(3, state)
        _, x, y = batch
        return (self.layer(x).squeeze(1) - y).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("index", batch[0].float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


class Notes(Callback):
    """Notes the samples trained on in each epoch, on all ranks together, and the number of ranks of each step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for part in en.allgather_object(batch[0].tolist()):
            state.seen[trainer.current_epoch] += part
        state.sizes.append(en.size())


en.init()
sampler = en.ElasticDistributedSampler(Rows())
state = LightningState(sampler, seen=[[] for _ in range(EPOCHS)], sizes=[])
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    trainer = trainer_of(state, [Notes()], max_epochs=EPOCHS)
    checked = DataLoader(torch.utils.data.Subset(Rows(), range(12)), BATCH)
    trainer.fit(SurvivingLine(), DataLoader(Rows(), BATCH, sampler=sampler), checked, ckpt_path=state.ckpt_path)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return trainer.global_step, trainer.current_epoch, rate, trainer.callback_metrics["index"].item()


steps, epochs, rate, index = train(state)
header, buffers = _codec.encode(state.checkpoint)
content = hashlib.sha256(b"".join([header, *buffers])).hexdigest()
told = {"rank": en.rank(), "steps": steps, "epochs": epochs, "rate": rate, "sizes": state.sizes, "content": content}
told["index"] = index
told["seen"] = [len(set(seen)) for seen in state.seen]
print(json.dumps({**told, **process}), flush=True)
