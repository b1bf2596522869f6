"""HF Trainer whose accelerator is to dispatch rank 0's batches: an epoch on two ranks. Prints the samples that each rank trained."""

import json

import torch
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

SAMPLES, BATCH = 16, 2
rows = [{**row, "number": torch.tensor(number)} for number, row in enumerate(rows_of(SAMPLES))]
trained = []


class NotingLine(Line):
    def forward(self, x, labels, number):
        trained.extend(number.tolist())
        return super().forward(x, labels)


@en.elastic.run
def train(state):
    en.init_process_group()
    settings = arguments(
        max_steps=SAMPLES // BATCH // en.size(),
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        accelerator_config={"dispatch_batches": True},
    )
    ElasticTrainer(state, model=NotingLine(), args=settings, train_dataset=rows).train()


en.init()
torch.manual_seed(0)
train(TransformersState(en.ElasticDistributedSampler(rows)))
print(json.dumps({"trained": trained}), flush=True)
