"""HF Trainer that saves its own checkpoints, and begins from the last one of an earlier run. Prints the samples that were trained, by
step.

Arguments: the steps of the whole training; "anew" or "resumed"; after which step rank 1 dies by kill -9, or 0."""

import json
import sys

import torch
from dying import die_once
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

STEPS, HOW, AFTER = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SAMPLES, BATCH = 24, 2


class NotingLine(Line):
    def forward(self, x, labels, number):
        self.numbers = number.tolist()
        return super().forward(x, labels)


class Notes(TrainerCallback):
    def on_step_end(self, args, trainer_state, control, model=None, **kwargs):
        state.trained.append(sorted(sum(en.allgather_object(model.numbers), [])))
        if trainer_state.global_step == AFTER:
            die_once(1)


en.init()
rows = [{**row, "number": torch.tensor(number)} for number, row in enumerate(rows_of(SAMPLES))]
state = TransformersState(en.ElasticDistributedSampler(rows, shuffle=False), trained=[])


@en.elastic.run
def train(state):
    en.init_process_group()
    torch.manual_seed(0)
    settings = arguments(max_steps=STEPS, per_device_train_batch_size=BATCH, save_steps=2)
    trainer = ElasticTrainer(state, model=NotingLine(), args=settings, train_dataset=rows, callbacks=[Notes()])
    return trainer.train(resume_from_checkpoint=HOW == "resumed").global_step


print(json.dumps({"steps": train(state), "trained": state.trained}), flush=True)
