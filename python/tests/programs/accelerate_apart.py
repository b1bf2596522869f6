"""Ranks that accelerate would have train apart from each other. The argument says why: the CPU is "forbidden", rank 1 alone has an
"accelerator", or one was made "before" the generation. Prints each rank's refusal."""

import json
import os
import sys

import torch
from accelerate import Accelerator
from transformers import TrainingArguments

import elastic_node.torch as en
from elastic_node.integrations.accelerate import ElasticAccelerator
from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

CASE = sys.argv[1]
en.init()
rows = [{"x": 0.0}] * 8
state = TransformersState(en.ElasticDistributedSampler(rows))
if CASE == "forbidden":
    os.environ["ACCELERATE_USE_CPU"] = "false"
if CASE == "accelerator" and en.rank() == 1:
    # Stands for one: this machine may have none.
    os.environ["ACCELERATE_TORCH_DEVICE"] = "meta"
if CASE == "before":
    Accelerator()


@en.elastic.run
def train(state):
    try:
        if CASE == "forbidden":
            en.init_process_group()
            arguments = TrainingArguments(os.environ["CONTROL"], max_steps=1, report_to=[])
            ElasticTrainer(state, model=torch.nn.Linear(1, 1), args=arguments, train_dataset=rows)
        else:
            ElasticAccelerator()
    except RuntimeError as error:
        return str(error)
    return None


refusal = train(state)
print(json.dumps({"rank": en.rank(), "refusal": refusal}), flush=True)
