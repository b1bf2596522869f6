"""Keras, on the backend in KERAS_BACKEND, whose callbacks watch a value that is best in the second epoch. Rank 0, which alone has a
`ModelCheckpoint`, dies by kill -9 in the fourth. Prints where each rank stops, its learning rate, the epochs whose weights were saved as
the best, whether it ends with the second one's, and the best value of another training in the same function."""

import json
import os
from pathlib import Path

import keras
import numpy
from dying import die_once

import elastic_node as en
import elastic_node.keras

WATCHED = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
FOLDER = Path(os.environ["CONTROL"])

en.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD(0.01))
model.compile(optimizer=optimizer, loss="mse", jit_compile=keras.backend.backend() == "jax")
state = elastic_node.keras.KerasState(model, epoch=0, batch=0, best=None)


class Watches(keras.callbacks.Callback):
    """Gives the callbacks behind it the value that they watch."""

    def on_train_batch_end(self, batch, logs=None):
        if state.epoch == 3 and batch == 1:
            die_once(0)

    def on_epoch_end(self, epoch, logs=None):
        logs["watched"] = WATCHED[epoch]
        if epoch == 1:
            state.best = model.get_weights()


@en.elastic.run
def train(state):
    stops = keras.callbacks.EarlyStopping("watched", mode="min", patience=3, restore_best_weights=True)
    reduces = keras.callbacks.ReduceLROnPlateau("watched", mode="min", patience=2, factor=0.5)
    path = str(FOLDER / "best-{epoch}.weights.h5")
    saves = keras.callbacks.ModelCheckpoint(path, "watched", save_best_only=True, save_weights_only=True, mode="min")
    callbacks = [
        Watches(),
        stops,
        reduces,
        *([saves] if en.rank() == 0 else []),
        elastic_node.keras.UpdateEpochStateCallback(state),
        elastic_node.keras.UpdateBatchStateCallback(state),
        elastic_node.keras.CommitStateCallback(state),
    ]
    x = numpy.random.default_rng(en.rank()).normal(size=(16, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    settings = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(x, y, initial_epoch=state.epoch, epochs=len(WATCHED), callbacks=callbacks, **settings)
    ended = state.epoch, float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    is_best = all((one == other).all() for one, other in zip(model.get_weights(), state.best))
    anew = keras.callbacks.EarlyStopping("watched", mode="min")
    model.fit(x, y, epochs=1, callbacks=[Watches(), anew, elastic_node.keras.CommitStateCallback(state)], **settings)
    return {"epochs": ended[0], "rate": ended[1], "is_best": is_best, "anew": anew.best}


told = train(state)
saved = sorted(int(path.name.split(".")[0].split("-")[1]) for path in FOLDER.glob("best-*"))
print(json.dumps({**told, "saved": saved}), flush=True)
