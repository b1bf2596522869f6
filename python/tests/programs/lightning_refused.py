"""Lightning with training loaders whose samples the state's sampler does not count. Prints the refusals, by what is given."""

import json

from lightning_line import Line, rows_of, trainer_of
from torch.utils.data import BatchSampler, DataLoader

import elastic_node.torch as en
from elastic_node.integrations.lightning import LightningState

SAMPLES, BATCH = 16, 4


def refusal(given):
    rows = rows_of(SAMPLES)
    sampler = en.ElasticDistributedSampler(rows)
    trainer = trainer_of(LightningState(sampler), max_epochs=1)
    try:
        trainer.fit(Line(), given(rows, sampler), DataLoader(rows, BATCH))
    except ValueError as error:
        return str(error)
    return sampler.epoch


@en.elastic.run
def train(state):
    en.init_process_group()
    return {
        "shuffled": refusal(lambda rows, sampler: DataLoader(rows, BATCH, shuffle=True)),
        "another": refusal(lambda rows, sampler: DataLoader(rows, BATCH, sampler=en.ElasticDistributedSampler(rows))),
        "batches": refusal(lambda rows, sampler: DataLoader(rows, batch_sampler=BatchSampler(sampler, BATCH, False))),
        "the state's": refusal(lambda rows, sampler: DataLoader(rows, BATCH, sampler=sampler)),
    }


en.init()
print(json.dumps(train(en.elastic.ObjectState())), flush=True)
