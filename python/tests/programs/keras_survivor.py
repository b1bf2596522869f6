"""Keras that survives, on the backend in KERAS_BACKEND: rank 1 dies by kill -9 in the middle of an epoch, once. Prints each rank's
weights. Then all ranks train a new model together, and each by itself with the whole batches: prints how far the weights are apart."""

import json
import os
import signal
from pathlib import Path

import keras
import numpy

import elastic_node as en
import elastic_node.keras

ONCE = Path(os.environ["CONTROL"]) / "killed"
EPOCHS, BATCH = 4, 4


def compiled(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse", jit_compile=keras.backend.backend() == "jax")
    return model


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5)


en.init()
x = numpy.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = compiled(elastic_node.keras.DistributedOptimizer(sgd()))
state = elastic_node.keras.KerasState(model, epoch=0, batch=0)
process = {"calls": 0}


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if state.epoch == 1 and batch == 2 and en.rank() == 1 and not ONCE.exists():
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def difference_from_whole_batches():
    together, alone = compiled(elastic_node.keras.DistributedOptimizer(sgd())), compiled(sgd())
    mine = slice(en.rank(), None, en.size())
    settings = {"shuffle": False, "verbose": 0}
    together.fit(x[mine], y[mine], batch_size=BATCH, **settings)
    alone.fit(x, y, batch_size=BATCH * en.size(), **settings)
    pairs = zip(together.get_weights(), alone.get_weights())
    return max(float(numpy.abs(one - other).max()) for one, other in pairs)


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
    process["began_at"] = [state.epoch, state.batch]
    model.fit(
        x[mine], y[mine], batch_size=BATCH, initial_epoch=state.epoch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
    )
    state.commit()
    process["difference"] = difference_from_whole_batches()


train(state)
loss = float(numpy.square(model.predict(x, verbose=0) - y).mean())
weights = [weight.tolist() for weight in model.get_weights()]
print(json.dumps({"rank": en.rank(), "weights": weights, "loss": loss, "epoch": state.epoch, **process}), flush=True)
