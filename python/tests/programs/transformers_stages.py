"""Two trainings by HF Trainer in one training function, of one model made outside of it, with a copy of the model between them. A rank
dies by kill -9. Prints the steps of each training, and how far the copy and the model end from those that are trained here without a
trainer.

Arguments: the stage in which rank 1 dies, from 0, and after which of its steps; or "between"."""

import copy
import json
import sys

import torch
from dying import die_once
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

STAGE, AFTER = sys.argv[1], int(sys.argv[2])
# An epoch is one step of all ranks' batches, whatever the order of the samples.
BATCH, STEPS, RATES, MOMENTUM = 8, 4, (0.05, 0.01), 0.9


class Dies(TrainerCallback):
    def __init__(self, stage):
        self.stage = stage

    def on_step_end(self, args, trainer_state, control, **kwargs):
        if STAGE == str(self.stage) and trainer_state.global_step == AFTER:
            die_once(1)


def optimizer_of(model, rate):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)


def trained_alone(model, rate):
    optimizer = optimizer_of(model, rate)
    x, labels = (torch.stack([row[name] for row in rows]) for name in ("x", "labels"))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x, labels)["loss"].backward()
        optimizer.step()
    return copy.deepcopy(model)


def difference(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters()))


en.init()
torch.manual_seed(0)
model = Line()
alone = copy.deepcopy(model)
rows = rows_of(BATCH * en.size())
due = [trained_alone(alone, rate) for rate in RATES]
state = TransformersState(en.ElasticDistributedSampler(rows))


def train_stage(stage):
    settings = arguments(
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
    )
    optimizer = optimizer_of(model, RATES[stage])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = ElasticTrainer(
        state, model=model, args=settings, train_dataset=rows, callbacks=[Dies(stage)], optimizers=(optimizer, schedule)
    )
    return trainer.train().global_step


@en.elastic.run
def train(state):
    en.init_process_group()
    steps = [train_stage(0)]
    kept = copy.deepcopy(model)
    if STAGE == "between":
        die_once(1)
    steps.append(train_stage(1))
    return steps, kept


steps, kept = train(state)
print(json.dumps({"steps": steps, "differences": [difference(kept, due[0]), difference(model, due[1])]}), flush=True)
