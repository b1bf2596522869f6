"""HF Trainer that survives: one rank dies by kill -9 in the middle of an epoch; the others go on, until another one has come.
Prints what each rank ends with."""

import hashlib
import json
import os

import torch
from dying import come_when_awaited, die_once, until_there_are
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node import _codec
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

SAMPLES, BATCH, STEPS, KILLED_AT, GROWN_AT = 240, 4, 70, 27, 57
SIZE = int(os.environ["WORLD_SIZE"])


class Watches(TrainerCallback):
    """Dies, waits, and writes down by how many ranks each step was made."""

    def on_step_begin(self, args, trainer_state, control, **kwargs):
        if trainer_state.global_step == KILLED_AT:
            die_once(1)
        if trainer_state.global_step == GROWN_AT:
            until_there_are(SIZE, state)

    def on_optimizer_step(self, args, trainer_state, control, **kwargs):
        state.sizes.append(args.world_size)


come_when_awaited()
en.init()
torch.manual_seed(0)
model = Line()
rows = rows_of(SAMPLES)
state = TransformersState(en.ElasticDistributedSampler(rows), sizes=[])
process = {"calls": 0}


@en.elastic.run
def train(state):
    process["calls"] += 1
    en.init_process_group()
    settings = arguments(
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        learning_rate=0.1,
        save_strategy="no",
        logging_steps=10,
    )
    trainer = ElasticTrainer(state, model=model, args=settings, train_dataset=rows, callbacks=[Watches()])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer.state.global_step, trainer.state.epoch, losses, trainer.lr_scheduler.get_last_lr()[0]


steps, epochs, losses, rate = train(state)
state.checkpoint.pop("trainer")
header, buffers = _codec.encode(state.checkpoint)
content = hashlib.sha256(b"".join([header, *buffers])).hexdigest()
told = {"rank": en.rank(), "steps": steps, "epochs": epochs, "rate": rate, "sizes": state.sizes, "content": content}
told["losses"] = losses
print(json.dumps({**told, **process}), flush=True)
