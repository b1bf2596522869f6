"""Elastic Keras 3 on torch, JAX or TensorFlow, with Horovod's names: `KerasState`, its callbacks, and an optimiser that averages
gradients.

::

    model.compile(optimizer=en.keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    state = en.keras.KerasState(model, epoch=0, batch=0)

    @en.elastic.run
    def train(state):
        callbacks = [
            en.keras.UpdateEpochStateCallback(state),
            en.keras.UpdateBatchStateCallback(state),
            en.keras.CommitStateCallback(state),
        ]
        model.fit(x, y, initial_epoch=state.epoch, epochs=10, callbacks=callbacks)

On TensorFlow the model is compiled with `jit_compile=False`: XLA there calls nothing outside of its own code.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Protocol, Sequence

import keras

from . import _keras_gradients
from .elastic import ObjectState, State

__all__ = [
    "CommitStateCallback",
    "DistributedOptimizer",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]

if _keras_gradients.BACKEND not in _keras_gradients.KNOWN:
    raise ImportError(
        f"elastic_node.keras is for Keras on {', '.join(_keras_gradients.KNOWN)}, this is {_keras_gradients.BACKEND}: set KERAS_BACKEND"
    )


class CountsBatches(Protocol):
    """A state with the number of the epoch's batches that are done."""

    batch: int


class CountsEpochs(Protocol):
    """A state with the number of epochs that are done."""

    epoch: int


class KerasState(ObjectState):
    """The weights of a model and of its optimiser, and any other values: `KerasState(model, epoch=0, batch=0)`. Horovod's
    TensorFlowKerasState.

    Args:
        model: built, so that its weights are there; compiled, unless an optimiser is given.
        optimizer: the model's own, if none is given.
        kwargs: everything else, as with `ObjectState`.

    Raises:
        ValueError: on TensorFlow, the model is compiled by XLA, in which a `DistributedOptimizer` cannot average.
    """

    #: Number of epochs that are done, where it is given; `UpdateEpochStateCallback` counts them.
    epoch: int
    #: Number of batches of the epoch that are done, where it is given; `UpdateBatchStateCallback` counts them.
    batch: int

    def __init__(
        self, model: keras.Model, optimizer: Optional[keras.optimizers.Optimizer] = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self._model = model
        self._optimizer = optimizer or model.optimizer
        averages = getattr(self._optimizer, "averages_gradients", False)
        if _keras_gradients.BACKEND == "tensorflow" and averages and model.jit_compile:
            raise ValueError(
                "the model's steps are compiled by XLA, which on TensorFlow cannot call the other ranks: give "
                "model.compile(..., jit_compile=False)"
            )
        if not self._optimizer.built:
            self._optimizer.build(model.trainable_variables)

    def _variables(self) -> List[keras.Variable]:
        return [*self._model.variables, *self._optimizer.variables]

    def commit(self) -> None:
        self._settle()
        super().commit()

    def save(self) -> None:
        self._settle()
        super().save()

    def _settle(self) -> None:
        """Waits for the step that JAX computes beside this thread, and gives the model the variables that it makes. If a collective
        in it fails, that is raised here, and not while the state is captured."""
        if _keras_gradients.BACKEND == "jax":
            import jax

            self._model.jax_state_sync()
            values: Any = [variable.value for variable in self._variables()]
            jax.block_until_ready(values)  # type: ignore[no-untyped-call]

    def capture(self) -> Dict[str, Any]:
        self._settle()
        values = [keras.ops.convert_to_numpy(variable) for variable in self._variables()]
        return {"values": super().capture(), "variables": values}

    def apply(self, content: Dict[str, Any]) -> None:
        super().apply(content["values"])
        if _keras_gradients.BACKEND == "jax":
            # Variables that an epoch left when it was broken off: later than this content, or without memory.
            self._model._jax_state, self._model._jax_state_synced = None, True
        for variable, value in zip(self._variables(), content["variables"]):
            variable.assign(value)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types of its own.
    """Commits the state after every so many batches. Put it behind the callbacks that count.

    Args:
        state: of `elastic_node.elastic.run`.
        batches_per_commit: 1 for each batch.
    """

    def __init__(self, state: State[Any], batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state, self._every, self._batches = state, batches_per_commit, 0

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._batches += 1
        if self._batches % self._every == 0:
            self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types of its own.
    """Counts batches of the epoch in `state.batch`; 0 when an epoch begins anew.

    An epoch that was broken off begins again with its first batch of data; `state.batch` says how many it had done.
    """

    def __init__(self, state: CountsBatches) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types of its own.
    """Counts finished epochs in `state.epoch`: give `initial_epoch=state.epoch` to `fit`."""

    def __init__(self, state: CountsEpochs) -> None:
        super().__init__()
        self._state = state

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._state.epoch = epoch + 1


def DistributedOptimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:  # noqa: N802: Horovod's name
    """An optimiser like this one that applies the average of all ranks' gradients. It has the settings of the one given,
    which must be new.

    On JAX and TensorFlow, gradients go through main memory, also from a GPU. On TensorFlow, a model that is compiled by XLA
    (`jit_compile`) fails at its first step; the error's text names the way out. On JAX each rank is a JAX of one process: the
    first step of one with `jax.distributed` raises `ValueError`.

    Raises:
        ValueError: the optimiser has been used already.
    """
    if optimizer.built:
        raise ValueError("the optimizer has state already: wrap it before the first step")
    kind = type(optimizer)

    class Averaging(kind):  # type: ignore[misc,valid-type]
        #: For `KerasState`.
        averages_gradients = True

        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            present = [gradient for gradient in grads if gradient is not None]
            averages = iter(_keras_gradients.averages(present, f"gradients of {self.name}"))
            averaged = [None if gradient is None else next(averages) for gradient in grads]
            super().apply(averaged, trainable_variables)

    Averaging.__name__ = Averaging.__qualname__ = kind.__name__
    return Averaging.from_config(optimizer.get_config())
