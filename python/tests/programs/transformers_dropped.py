"""HF Trainer that drops last batches, on two ranks. It begins where an epoch has less than a batch left for each rank; then with fewer
samples than a batch of each rank has. Prints the steps and epochs of the first one, the sizes of its batches, and the refusal of the
second one."""

import json

import torch
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

SAMPLES, BATCH, STEPS = 10, 4, 6
sizes = []


class MeasuredLine(Line):
    def forward(self, x, labels):
        sizes.append(len(x))
        return super().forward(x, labels)


def trained(state, model, samples):
    settings = arguments(max_steps=STEPS, per_device_train_batch_size=BATCH, dataloader_drop_last=True, save_strategy="no")
    trainer = ElasticTrainer(state, model=model, args=settings, train_dataset=rows_of(samples))
    trainer.train()
    return trainer.state.global_step


en.init()
torch.manual_seed(0)
state = TransformersState(en.ElasticDistributedSampler(rows_of(SAMPLES)))
# Two ranks have three samples each left.
state.sampler.record_batch(0, 4)


@en.elastic.run
def train(state):
    en.init_process_group()
    steps = trained(state, MeasuredLine(), SAMPLES)
    few = BATCH * en.size() - 2
    try:
        trained(TransformersState(en.ElasticDistributedSampler(rows_of(few))), Line(), few)
    except ValueError as error:
        return steps, str(error)
    return steps, None


steps, refusal = train(state)
print(json.dumps({"steps": steps, "epochs": state.sampler.epoch, "sizes": sizes, "refusal": refusal}), flush=True)
