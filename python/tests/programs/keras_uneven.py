"""Keras whose ranks have other numbers of batches. Prints each rank's refusal; then trains with as many on each."""

import json

import keras
import numpy

import elastic_node as en
import elastic_node.keras

SAMPLES, BATCH = 33, 4

en.init()
x = numpy.ones((SAMPLES, 2), dtype="float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(optimizer=optimizer, loss="mse", jit_compile=False)


@en.elastic.run
def train(state):
    mine, settings = x[en.rank() :: en.size()], {"batch_size": BATCH, "verbose": 0}
    try:
        model.fit(mine, mine[:, :1], callbacks=[elastic_node.keras.CommitStateCallback(state)], **settings)
        refusal = None
    except ValueError as error:
        refusal = str(error)
    model.fit(mine, mine[:, :1], steps_per_epoch=4, callbacks=[elastic_node.keras.CommitStateCallback(state)], **settings)
    return refusal


refusal = train(elastic_node.keras.KerasState(model))
print(json.dumps({"refusal": refusal, "steps": int(keras.ops.convert_to_numpy(model.optimizer.iterations))}), flush=True)
