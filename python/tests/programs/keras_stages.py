"""Keras trains the head of a model, then all of it, compiled anew with an optimiser that is made in the training function. Rank 1 dies by
kill -9 in the second stage. Prints the epochs, and how far the weights are from those that each rank trains by itself here."""

import json

import keras
import numpy
from dying import die_once

import elastic_node as en
import elastic_node.keras

EPOCHS, STAGE_EPOCHS, BATCH, RATES = 6, 3, 8, (0.1, 0.01)


def made():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])


def compile_stage(model, stage, wrap):
    model.layers[0].trainable = stage > 0
    model.compile(optimizer=wrap(keras.optimizers.SGD(RATES[stage])), loss="mse", jit_compile=keras.backend.backend() == "jax")


def fit(model, x, y, batch):
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)


def trained_alone():
    alone = made()
    for epoch in range(EPOCHS):
        if epoch % STAGE_EPOCHS == 0:
            compile_stage(alone, epoch // STAGE_EPOCHS, lambda optimizer: optimizer)
        fit(alone, x, y, BATCH * en.size())
    return alone.get_weights()


en.init()
x = numpy.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = made()
state = en.elastic.ObjectState(weights=model.get_weights(), epoch=0)


@en.elastic.run
def train(state):
    model.set_weights(state.weights)
    mine, stage = slice(en.rank(), None, en.size()), None
    while state.epoch < EPOCHS:
        if state.epoch // STAGE_EPOCHS != stage:
            stage = state.epoch // STAGE_EPOCHS
            compile_stage(model, stage, elastic_node.keras.DistributedOptimizer)
        if state.epoch == STAGE_EPOCHS + 1:
            die_once(1)
        fit(model, x[mine], y[mine], BATCH)
        state.weights, state.epoch = model.get_weights(), state.epoch + 1
        state.commit()
    return max(float(numpy.abs(one - other).max()) for one, other in zip(state.weights, trained_alone()))


print(json.dumps({"difference": train(state), "epochs": state.epoch}), flush=True)
