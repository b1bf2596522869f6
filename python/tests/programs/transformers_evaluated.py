"""HF Trainer of which a rank dies by kill -9 while a step is evaluated or saved. Arguments: the event in which it dies, and
whether "steps" or an "epoch" is evaluated and saved. Prints at which steps there was a loss, an evaluation and a save, and the
sizes of the batches."""

import json
import sys

import torch
from dying import die_once
from transformers import TrainerCallback
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

EVENT, STRATEGY = sys.argv[1:]
SAMPLES, BATCH, STEPS, KILLED_AT = 12, 4, 8, 4


class MeasuredLine(Line):
    """Notes the sizes of the batches that it is trained with."""

    def forward(self, x, labels):
        if self.training:
            state.sizes.append(len(x))
        return super().forward(x, labels)


class Watches(TrainerCallback):
    def on_evaluate(self, args, trainer_state, control, **kwargs):
        self.came("evaluate", trainer_state)

    def on_save(self, args, trainer_state, control, **kwargs):
        self.came("save", trainer_state)
        state.saves.append(trainer_state.global_step)

    def came(self, event, trainer_state):
        if event == EVENT and trainer_state.global_step == KILLED_AT:
            die_once(1)


en.init()
torch.manual_seed(0)
model = MeasuredLine()
rows = rows_of(SAMPLES)
state = TransformersState(en.ElasticDistributedSampler(rows), saves=[], sizes=[])


@en.elastic.run
def train(state):
    en.init_process_group()
    settings = arguments(
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        logging_strategy=STRATEGY,
        eval_strategy=STRATEGY,
        save_strategy=STRATEGY,
        logging_steps=2,
        eval_steps=2,
        save_steps=2,
    )
    trainer = ElasticTrainer(
        state, model=model, args=settings, train_dataset=rows, eval_dataset=rows, callbacks=[Watches()]
    )
    trainer.train()
    return trainer.state.log_history


history = train(state)
steps = {key: [entry["step"] for entry in history if key in entry] for key in ("loss", "eval_loss")}
print(json.dumps({**steps, "saves": state.saves, "sizes": state.sizes}), flush=True)
