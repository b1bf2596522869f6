"""HF Trainer that finds its batch size, since more than two samples take more memory than there is. A rank dies by kill -9 in the
first epoch of two. Prints the batch size, the epochs, and how often each sample was trained.

Arguments: from which step on there is too little memory; the number of steps from one commit to the next."""

import json
import sys

import torch
from dying import die_once
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

SAMPLES, BATCH, FOUND, EPOCHS = 32, 4, 2, 2
SHORT_FROM, STEPS_PER_COMMIT = map(int, sys.argv[1:])
KILLED_AT = SHORT_FROM + 3
# Committed steps of whole batches, and those of the batches that are found, two ranks each.
KEPT = SHORT_FROM // STEPS_PER_COMMIT * STEPS_PER_COMMIT
STEPS = KEPT + (EPOCHS * SAMPLES - KEPT * BATCH * 2) // (FOUND * 2)


class LargeLine(Line):
    def forward(self, x, labels):
        if len(x) > FOUND and trainers[-1].state.global_step >= SHORT_FROM:
            raise RuntimeError("CUDA out of memory.")
        state.seen = state.seen + en.allgather_object([row.tolist() for row in x])
        return super().forward(x, labels)


class Dies(TrainerCallback):
    def on_step_begin(self, args, trainer_state, control, **kwargs):
        if trainer_state.global_step == KILLED_AT:
            die_once(1)


en.init()
torch.manual_seed(0)
rows = rows_of(SAMPLES)
state = TransformersState(en.ElasticDistributedSampler(rows), seen=[])
trainers = []


@en.elastic.run
def train(state):
    en.init_process_group()
    settings = arguments(
        max_steps=STEPS, per_device_train_batch_size=BATCH, auto_find_batch_size=True, save_strategy="no"
    )
    trainer = ElasticTrainer(
        state, STEPS_PER_COMMIT, model=LargeLine(), args=settings, train_dataset=rows, callbacks=[Dies()]
    )
    trainers.append(trainer)
    trainer.train()
    return trainer.state.train_batch_size


found = train(state)
seen = [row for part in state.seen for row in part]
times = [seen.count(row["x"].tolist()) for row in rows]
print(json.dumps({"found": found, "epochs": state.sampler.epoch, "times": times}), flush=True)
