"""HF Trainer that stops early; its evaluations get worse with each step. Rank 1 dies by kill -9 between two of them. Arguments: whether
the callback that stops is made "inside" of the training function or "outside", and the steps of a commit. Prints where each rank has
stopped, what the callback has counted, and the evaluations that another one, made outside, has counted."""

import json
import sys

import torch
from dying import die_once
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

MADE, STEPS_PER_COMMIT = sys.argv[1], int(sys.argv[2])
SAMPLES, BATCH, KILLED_AT, PATIENCE = 32, 4, 7, 3


class Dies(TrainerCallback):
    def on_step_begin(self, args, trainer_state, control, **kwargs):
        if trainer_state.global_step == KILLED_AT:
            die_once(1)


class Counts(TrainerCallback, ExportableState):
    def __init__(self):
        self.evaluations = 0

    def on_evaluate(self, args, trainer_state, control, **kwargs):
        self.evaluations += 1

    def state(self):
        return {"args": {}, "attributes": {"evaluations": self.evaluations}}


en.init()
torch.manual_seed(0)
model = Line()
rows = rows_of(SAMPLES)
opposite = [{"x": row["x"], "labels": -row["labels"]} for row in rows]
state = TransformersState(en.ElasticDistributedSampler(rows))
made_outside, counts = EarlyStoppingCallback(PATIENCE), Counts()


@en.elastic.run
def train(state):
    en.init_process_group()
    settings = arguments(
        max_steps=40,
        per_device_train_batch_size=BATCH,
        learning_rate=0.01,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="eval_loss",
    )
    stops = made_outside if MADE == "outside" else EarlyStoppingCallback(PATIENCE)
    trainer = ElasticTrainer(
        state,
        steps_per_commit=STEPS_PER_COMMIT,
        model=model,
        args=settings,
        train_dataset=rows,
        eval_dataset=opposite,
        callbacks=[Dies(), stops, counts],
    )
    trainer.train()
    return trainer.state.global_step, stops.early_stopping_patience_counter


steps, counted = train(state)
print(json.dumps({"steps": steps, "counted": counted, "evaluations": counts.evaluations}), flush=True)
