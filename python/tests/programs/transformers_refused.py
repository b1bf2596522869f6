"""HF Trainer with training data that the state's sampler does not count. Prints the refusals, by what is given."""

import json

import torch
from transformers_line import Line, arguments, rows_of

import elastic_node.torch as en
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

SAMPLES = 16
rows = rows_of(SAMPLES)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows)


class MeasuredStream(Stream):
    def __len__(self):
        return SAMPLES


class Packs(ElasticTrainer):
    """Makes another data set of what it is given, as trl's SFTTrainer with packing does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "train_dataset": kwargs["train_dataset"][: SAMPLES // 4]})


def refusal(state, given, kind=ElasticTrainer, replaced_by=None):
    try:
        settings = arguments(max_steps=2, per_device_train_batch_size=4, save_strategy="no")
        trainer = kind(state, model=Line(), args=settings, train_dataset=given)
        if replaced_by is not None:
            trainer.train_dataset = replaced_by
        trainer.train()
    except ValueError as error:
        return str(error)
    return None


@en.elastic.run
def train(state):
    en.init_process_group()
    return {
        "stream": refusal(state, Stream()),
        "measured stream": refusal(state, MeasuredStream()),
        "longer": refusal(state, rows_of(SAMPLES * 2)),
        "shorter": refusal(state, rows_of(SAMPLES // 2)),
        "packed": refusal(state, rows, Packs),
        "replaced": refusal(state, rows, replaced_by=rows_of(SAMPLES + 1)),
        "replaced by a stream": refusal(state, rows, replaced_by=Stream()),
        "the sampler's": refusal(state, rows),
    }


en.init()
print(json.dumps(train(TransformersState(en.ElasticDistributedSampler(rows)))), flush=True)
