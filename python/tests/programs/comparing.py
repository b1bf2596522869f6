"""For programs that compare the weights of a disturbed training with those of the same training by one process."""

import json

import torch

import elastic_node as en


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def tell(model, alone, process):
    """Prints this rank's weights, those that are expected, and what else is known of the process."""
    told = {"rank": en.rank(), "weights": weights(model), "expected": weights(alone), **process}
    print(json.dumps(told), flush=True)
