"""Keras in mixed precision, on the backend in KERAS_BACKEND: gradients of rank 1 alone are infinite at first, and rank 1 dies by
kill -9 as the second epoch begins. Prints each rank's weights, its steps and how often the scale of the loss was halved."""

import json
import math

import keras
import numpy
from dying import die_once

import elastic_node as en
import elastic_node.keras

EPOCHS, BATCH, SCALE = 3, 8, 2.0**15

en.init()
keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=SCALE)
optimizer = elastic_node.keras.DistributedOptimizer(scaled)
model.compile(optimizer=optimizer, loss="mse", jit_compile=keras.backend.backend() == "jax")
state = elastic_node.keras.KerasState(model, epoch=0, batch=0)


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            die_once(1)


@en.elastic.run
def train(state):
    x = numpy.random.default_rng(en.rank()).normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True) * (1 if en.rank() == 0 else 30)
    callbacks = [
        elastic_node.keras.UpdateEpochStateCallback(state),
        elastic_node.keras.UpdateBatchStateCallback(state),
        elastic_node.keras.CommitStateCallback(state),
        Dies(),
    ]
    settings = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(x, y, initial_epoch=state.epoch, epochs=EPOCHS, callbacks=callbacks, **settings)


train(state)
steps, scale = (float(keras.ops.convert_to_numpy(value)) for value in (optimizer.iterations, optimizer.dynamic_scale))
weights = [weight.tolist() for weight in model.get_weights()]
print(json.dumps({"weights": weights, "steps": steps, "halved": math.log2(SCALE / scale)}), flush=True)
