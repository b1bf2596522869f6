"""A script of stock torch that does not know of us: rank 1 stands still, and the others compute, until the driver has named it."""

import os
import time

import torch

from job_events import is_named


def waits_for_its_data():
    while not is_named(rank=1):
        time.sleep(0.5)


def computes():
    weights = torch.ones(64, 64)
    while not is_named(rank=1):
        for _step in range(100):
            weights = weights @ torch.eye(64)


if os.environ["RANK"] == "1":
    waits_for_its_data()
else:
    computes()
