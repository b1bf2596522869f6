"""HF Trainer with a model made outside of the training function, which loses a rank or memory before the first commit of a step.
Prints whether each training began with the model as it was made, the optimiser's state empty, and how far the model ends from one
that is trained here by itself.

Arguments: what is made "outside" of the function beside the model, an optimiser and its schedule, or "trainer" for nothing; the number
of steps from one commit to the next; and after which step rank 1 "dies", or from which on there is too little memory ("short")."""

import json
import sys

import torch
from dying import die_once
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

MADE, STEPS_PER_COMMIT, WHAT, AFTER = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
# An epoch is one step of all ranks' batches, whatever the order of the samples.
BATCH, STEPS, RATE = 8, 6, 0.02


class ShortOfMemory(Line):
    def forward(self, x, labels):
        if WHAT == "short" and len(x) == BATCH and trainers[-1].state.global_step >= AFTER:
            raise RuntimeError("CUDA out of memory.")
        return super().forward(x, labels)


class Watches(TrainerCallback):
    def on_step_begin(self, args, trainer_state, control, model=None, optimizer=None, **kwargs):
        if trainer_state.global_step == 0:
            is_as_made = torch.equal(model.layer.weight, made_weight) and not optimizer.state_dict()["state"]
            begun.append(is_as_made)

    def on_step_end(self, args, trainer_state, control, **kwargs):
        if WHAT == "dies" and trainer_state.global_step == AFTER:
            die_once(1)


def optimizers_of(model):
    momentum = 0.9 if MADE == "outside" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step if MADE == "outside" else 1.0)


en.init()
torch.manual_seed(0)
model = ShortOfMemory()
made_weight = model.layer.weight.detach().clone()
alone = Line()
alone.load_state_dict(model.state_dict())
rows = rows_of(BATCH * en.size())
state = TransformersState(en.ElasticDistributedSampler(rows))
made = {"optimizers": optimizers_of(model)} if MADE == "outside" else {}
begun, trainers = [], []


@en.elastic.run
def train(state):
    en.init_process_group()
    settings = arguments(
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        auto_find_batch_size=WHAT == "short",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        save_strategy="no",
    )
    trainer = ElasticTrainer(
        state, STEPS_PER_COMMIT, model=model, args=settings, train_dataset=rows, callbacks=[Watches()], **made
    )
    trainers.append(trainer)
    trainer.train()


train(state)
optimizer, schedule = optimizers_of(alone)
x, labels = torch.stack([row["x"] for row in rows]), torch.stack([row["labels"] for row in rows])
for _ in range(STEPS):
    optimizer.zero_grad()
    alone(x, labels)["loss"].backward()
    optimizer.step()
    schedule.step()
difference = float((model.layer.weight - alone.layer.weight).abs().max().detach())
print(json.dumps({"rank": en.rank(), "begun": begun, "difference": difference}), flush=True)
