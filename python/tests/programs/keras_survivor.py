"""Keras on torch that survives: rank 1 dies by kill -9 in the middle of an epoch, once. Prints each rank's weights."""

import json
import os
import signal
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

import elastic_node.keras
import elastic_node.torch as en

ONCE = Path(os.environ["CONTROL"]) / "killed"
EPOCHS = 4

en.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
model.compile(optimizer=optimizer, loss="mse")
x = numpy.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
state = elastic_node.keras.KerasState(model, epoch=0, batch=0)
process = {"calls": 0}


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if state.epoch == 1 and batch == 2 and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@en.elastic.run
def train(state):
    process["calls"] += 1
    callbacks = [
        elastic_node.keras.UpdateEpochStateCallback(state),
        elastic_node.keras.UpdateBatchStateCallback(state),
        Dies(),
        elastic_node.keras.CommitStateCallback(state, batches_per_commit=2),
    ]
    mine = slice(en.rank(), None, en.size())
    model.fit(
        x[mine], y[mine], batch_size=4, initial_epoch=state.epoch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
    )
    state.commit()


train(state)
loss = float(numpy.square(model.predict(x, verbose=0) - y).mean())
weights = [weight.tolist() for weight in model.get_weights()]
print(json.dumps({"rank": en.rank(), "weights": weights, "loss": loss, "epoch": state.epoch, **process}), flush=True)
