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

import functools
import logging
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple

import keras

from . import _holders, _keras_gradients, _keras_names
from ._objects import allgather_object, broadcast_object
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


_LOSS_SCALE_OUTSIDE = (
    "a LossScaleOptimizer around DistributedOptimizer would skip steps on each rank by that rank's own view of infinite gradients, and "
    "their average with it: give DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)). Under the policy mixed_float16 "
    "model.compile puts one around any other optimizer by itself; model.compile(..., auto_scale_loss=False) leaves it out"
)


_UNBUILT = (
    "these optimizers of the state are not built: {names}. Their variables come with the first step, so a rank that takes the state over "
    "would have none for them. Build each before the state is made, by the variables that it trains: "
    "optimizer.build(model.trainable_variables)"
)

#: The objects of Keras that stay what they are in a state, and are given their variables.
_HOLDERS = (keras.optimizers.Optimizer, keras.Layer, keras.metrics.Metric, keras.Variable)

#: Keras' callbacks that watch a value from epoch to epoch, and what they know of it. They forget it as a training begins: without
#: help, in each generation.
_MONITORS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau, keras.callbacks.ModelCheckpoint)
_MONITORED = ("best", "best_epoch", "wait", "cooldown_counter")

#: The name of learning rates beside what these callbacks know.
_RATES = "rates"

#: Keras' callbacks that exchange the model's weights for their moving averages, and back as the next epoch begins.
_EXCHANGERS = getattr(keras.callbacks, "SwapEMAWeights", ())

#: The name of what a commit says of them.
_EXCHANGED = "exchanged"


class CountsBatches(Protocol):
    """A state with the number of the epoch's batches that are done."""

    batch: int


class CountsEpochs(Protocol):
    """A state with the number of epochs that are done."""

    epoch: int


class KerasState(ObjectState):
    """The weights of a model and of its optimiser, and any other values: `KerasState(model, epoch=0, batch=0)`. Horovod's
    TensorFlowKerasState. With `CommitStateCallback` also what Keras' `EarlyStopping`, `ReduceLROnPlateau` and
    `ModelCheckpoint(save_best_only=True)` know.

    Further optimisers are part of it, too: those that the model, or a layer of it, has as attributes, as a GAN has, and those that are
    given as attributes of the state. So are further models, layers and metrics in the state. They stay the objects that they are,
    also in lists, tuples and dictionaries, and are given their variables.

    Args:
        model: built, so that its weights are there; compiled, unless an optimiser is given.
        optimizer: the model's own, if none is given.
        kwargs: everything else, as with `ObjectState`.

    Raises:
        ValueError: a further optimiser is not built, so that its variables are not there; also at a commit, where the model has got
            another one since. On TensorFlow, the model is compiled by XLA, in which a `DistributedOptimizer` cannot average. Later, where a
            state is taken over: it is of another model or optimiser. At a commit: the model was compiled again with another optimiser.
    """

    #: Number of epochs that are done, where it is given; `UpdateEpochStateCallback` counts them.
    epoch: int
    #: Number of batches of the epoch that are done, where it is given; `UpdateBatchStateCallback` counts them.
    batch: int

    def __init__(
        self, model: keras.Model, optimizer: Optional[keras.optimizers.Optimizer] = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        #: Number of the epochs after which Keras' callbacks knew something, and what each did; nothing once the training is over.
        self._monitored: Tuple[int, Dict[str, Dict[str, Any]]] = 0, {}
        self._model = model
        self._optimizer = optimizer or model.optimizer
        self._has_models_optimizer = optimizer is None or optimizer is model.optimizer
        averages = getattr(self._optimizer, "averages_gradients", False)
        if _keras_gradients.BACKEND == "tensorflow" and averages and model.jit_compile:
            raise ValueError(
                "the model's steps are compiled by XLA, which on TensorFlow cannot call the other ranks: give "
                "model.compile(..., jit_compile=False)"
            )
        if not self._optimizer.built:
            self._optimizer.build(model.trainable_variables)
        #: The optimisers of the model and its layers beside the one above, with their names.
        self._further = self._further_optimizers()
        self._check_built()

    def _variables(self) -> List[keras.Variable]:
        further = (variable for _, optimizer in self._further for variable in optimizer.variables)
        return [*self._model.variables, *self._optimizer.variables, *further]

    def _further_optimizers(self) -> List[Tuple[str, Any]]:
        """The optimisers that are attributes of the model and its layers, each once, without those of which the state has the
        variables by another one."""
        seen = {id(self._optimizer), id(self._model.optimizer), *map(id, _within(self._optimizer)), *map(id, _within(self._model.optimizer))}
        found: List[Tuple[str, Any]] = []
        for layer in [self._model, *self._model._flatten_layers(include_self=False)]:
            for name, value in sorted(vars(layer).items()):
                for optimizer in _holders.found({name: value}, _is_optimizer):
                    if id(optimizer) not in seen:
                        seen.update(map(id, [optimizer, *_within(optimizer)]))
                        found.append((f"{layer.name}.{name}", optimizer))
        return found

    def _check_built(self) -> None:
        own = ((name, optimizer) for name in self._public() for optimizer in _holders.found({name: getattr(self, name)}, _is_optimizer))
        unbuilt = sorted({name for name, optimizer in [*own, *self._further] if not optimizer.built})
        if unbuilt:
            raise ValueError(_UNBUILT.format(names=", ".join(unbuilt)))

    def _is_holder(self, value: Any) -> bool:
        return isinstance(value, _HOLDERS) or super()._is_holder(value)

    def _content_of(self, holder: Any) -> Any:
        if isinstance(holder, _HOLDERS):
            return [keras.ops.convert_to_numpy(variable) for variable in _variables_of(holder)]
        return super()._content_of(holder)

    def _give(self, holder: Any, content: Any) -> None:
        if isinstance(holder, _HOLDERS):
            _assign(_variables_of(holder), content)
        else:
            super()._give(holder, content)

    def commit(self) -> None:
        self._check_optimizer()
        self._settle()
        super().commit()

    def save(self) -> None:
        self._settle()
        super().save()

    def _check_optimizer(self) -> None:
        """Refuses a commit without the optimiser that the model trains with by now."""
        if self._has_models_optimizer and self._model.optimizer is not self._optimizer:
            raise ValueError(
                "the model was compiled again, and trains with another optimizer than the KerasState was made with: a rank that takes "
                "the state over would begin with an empty one. Compile the model once, before the state, and assign "
                "model.optimizer.learning_rate where only that changes; or give each phase a job of its own"
            )
        further = self._further_optimizers()
        if [id(optimizer) for _, optimizer in further] != [id(optimizer) for _, optimizer in self._further]:
            known = {id(optimizer) for _, optimizer in self._further}
            names = ", ".join(name for name, optimizer in further if id(optimizer) not in known) or "one is missing"
            raise ValueError(
                f"the model has got other optimizers since the KerasState was made ({names}): a rank that takes the state over would "
                "begin with empty ones. Give them to the model, and build them, before the state is made"
            )
        self._check_built()

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
        return {"values": super().capture(), "variables": values, "monitored": self._monitored}

    def apply(self, content: Dict[str, Any]) -> None:
        variables, values = self._variables(), content["variables"]
        _check_shapes(variables, values)
        super().apply(content["values"])
        # Checkpoints of earlier releases have none.
        self._monitored = content.get("monitored", (0, {}))
        if _keras_gradients.BACKEND == "jax":
            # Variables that an epoch left when it was broken off: later than this content, or without memory.
            self._model._jax_state, self._model._jax_state_synced = None, True
        _assign(variables, values)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _within(optimizer: Any) -> List[Any]:
    """The optimisers that one has in it, whose variables are its own: of a LossScaleOptimizer, or a MultiOptimizer."""
    inner = [getattr(optimizer, "inner_optimizer", None), *(getattr(optimizer, "optimizers", None) or ())]
    own = [one for one in inner if one is not None]
    return [*own, *(other for one in own for other in _within(one))]


def _variables_of(holder: Any) -> List[Any]:
    return [holder] if isinstance(holder, keras.Variable) else list(holder.variables)


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    _check_shapes(variables, values)
    for variable, value in zip(variables, values):
        variable.assign(value)


def _check_shapes(variables: Sequence[Any], values: Sequence[Any]) -> None:
    held, own = [value.shape for value in values], [tuple(variable.shape) for variable in variables]
    if held != own:
        raise ValueError(
            f"{_difference(held, own)}: give every rank, and a job that goes on from a checkpoint, the model and the optimizer "
            "of the state"
        )


def _difference(held: Sequence[Sequence[int]], own: Sequence[Sequence[int]]) -> str:
    """What tells the shapes of a state's variables from those of this rank."""
    if len(held) != len(own):
        return f"the state has {len(held)} variables of a model and its optimizer, and this rank's have {len(own)}"
    number = next(number for number, (one, other) in enumerate(zip(held, own)) if one != other)
    return f"variable {number} of the state's model and optimizer has shape {held[number]}, and this rank's has {own[number]}"


def _monitors(callbacks: Sequence[Any]) -> Dict[str, Any]:
    """Keras' callbacks that watch a value, by names that are the same on all ranks."""
    named: Dict[str, Any] = {}
    for callback in callbacks:
        # A `ModelCheckpoint` that saves each epoch knows nothing.
        if isinstance(callback, _MONITORS) and getattr(callback, "save_best_only", True):
            name = f"{type(callback).__name__} of {callback.monitor}"
            while name in named:
                name += ", another"
            named[name] = callback
    return named


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types of its own.
    """Commits the state after every so many batches, and at the end of each epoch, after its validation. Put it behind the callbacks
    that count, and behind Keras' `EarlyStopping`, `ReduceLROnPlateau` and `ModelCheckpoint(save_best_only=True)`: what rank 0's
    knew at the end of the last epoch is part of a `KerasState`, and after a loss they go on from there. So are the learning
    rates before the epoch, from which Keras' `LearningRateScheduler` begins it again.

    Args:
        state: of `elastic_node.elastic.run`.
        batches_per_commit: 1 for each batch.

    Raises:
        ValueError: as training begins: an epoch has other numbers of batches on the ranks, whose gradients are averaged.
    """

    def __init__(self, state: State[Any], batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state, self._every, self._batches = state, batches_per_commit, 0
        self._monitors: Dict[str, Any] = {}
        #: Keras' callbacks that exchange weights.
        self._exchangers: List[Any] = []
        #: The learning rates before this epoch, where a `LearningRateScheduler` changes them at its beginning.
        self._rates_before: Optional[List[float]] = None

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._batches, self._rates_before = 0, None

    def all_have_begun(self, callbacks: Sequence[Any]) -> None:
        """Gives Keras' callbacks what they knew.

        Args:
            callbacks: of this training, in order; each has forgotten already.
        """
        if not isinstance(self._state, KerasState):
            return
        self._check_steps(self._state)
        self._monitors = _monitors(callbacks)
        if self._is_of_this_training(self._state):
            for name, callback in self._monitors.items():
                vars(callback).update(self._state._monitored[1].get(name, {}))
        self._exchangers = [callback for callback in callbacks if isinstance(callback, _EXCHANGERS)]
        exchanged = self._state._monitored[1].get(_EXCHANGED, {}) if self._is_of_this_training(self._state) else {}
        for callback, is_exchanged in zip(self._exchangers, exchanged.get("averages_in_model", [])):
            callback._ema_weights_in_model = is_exchanged
        if any(isinstance(callback, keras.callbacks.LearningRateScheduler) for callback in callbacks):
            self._go_back_to_rates(self._state)
        late = _monitors(callbacks[callbacks.index(self) :])
        if late:
            warning = "%s is behind CommitStateCallback, which commits what it knew an epoch before: put it in front"
            logging.getLogger(__name__).warning(warning, ", ".join(late))

    def _check_steps(self, state: KerasState) -> None:
        """Refuses a training with other numbers of batches on the ranks, in which some would wait for gradients of the others."""
        if state._session_here() is None or not getattr(self.model.optimizer, "averages_gradients", False):
            return
        of_ranks: List[Optional[int]] = allgather_object((self.params or {}).get("steps"))
        # Keras does not know how many a generator gives.
        if None not in of_ranks and len(set(of_ranks)) > 1:
            least, most = min(of_ranks, key=int), max(of_ranks, key=int)  # type: ignore[arg-type]  # None is not among them.
            raise ValueError(
                f"an epoch has {least} batches on rank {of_ranks.index(least)} and {most} on rank {of_ranks.index(most)}: the ranks that have "
                "more would wait for gradients of the others. Give every rank as many samples, or fit the least of their "
                "numbers of batches as steps_per_epoch"
            )

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self._batches += 1
        if self._batches % self._every == 0:
            self._note_rates()
            self._note_exchanged()
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if isinstance(self._state, KerasState):
            self._state._monitored = epoch + 1, self._known()
        if self._rates_before is not None:
            self._rates_before = self._rates()
            self._note_rates()
        self._note_exchanged()
        # The last batch was committed in an epoch that was not counted yet, and would begin again.
        self._state.commit()

    def on_train_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        if isinstance(self._state, KerasState) and self._is_of_this_training(self._state):
            # A later training in the same function begins with callbacks that know nothing.
            self._state._monitored = 0, {}

    def _is_of_this_training(self, state: KerasState) -> bool:
        """Whether callbacks of this training knew what the state has. An earlier one, which is over, comes by again after a loss in
        a later one."""
        epochs = (self.params or {}).get("epochs")
        return epochs is None or state._monitored[0] <= epochs

    def _optimizers(self) -> List[Any]:
        """The model's optimisers, as Keras' `LearningRateScheduler` finds them."""
        optimizer = self.model.optimizer
        return list(getattr(optimizer, "optimizers", [optimizer]))

    def _rates(self) -> List[float]:
        return [float(keras.ops.convert_to_numpy(optimizer.learning_rate)) for optimizer in self._optimizers()]

    def _note_rates(self) -> None:
        """Has the next commit hold the learning rates before the epoch, beside the present ones."""
        if isinstance(self._state, KerasState) and self._rates_before is not None:
            epochs, known = self._state._monitored
            self._state._monitored = epochs, {**known, _RATES: {"before": self._rates_before, "committed": self._rates()}}

    def _note_exchanged(self) -> None:
        """Has the next commit say whether its weights are the moving averages: a callback of the next generation begins with none."""
        if isinstance(self._state, KerasState) and self._exchangers:
            epochs, known = self._state._monitored
            exchanged = [callback._ema_weights_in_model for callback in self._exchangers]
            self._state._monitored = epochs, {**known, _EXCHANGED: {"averages_in_model": exchanged}}

    def _go_back_to_rates(self, state: KerasState) -> None:
        """Sets the learning rates of before the epoch, which begins again: a schedule would be applied to its own result. Rates
        that the program has set since the commit stay."""
        noted = state._monitored[1].get(_RATES, {}) if self._is_of_this_training(state) else {}
        if noted.get("committed") == self._rates():
            for optimizer, rate in zip(self._optimizers(), noted["before"]):
                optimizer.learning_rate = rate
        self._rates_before = self._rates()

    def _known(self) -> Dict[str, Dict[str, Any]]:
        """The values of Keras' callbacks on rank 0: often it alone has a `ModelCheckpoint`, and may be lost."""
        own = {
            name: {part: vars(callback)[part] for part in _MONITORED if part in vars(callback)}
            for name, callback in self._monitors.items()
        }
        known: Dict[str, Dict[str, Any]] = own if self._state._session_here() is None else broadcast_object(own)
        for name, callback in self._monitors.items():
            # Every rank has the same weights, which need no message.
            if name in known and getattr(callback, "best_weights", None) is not None:
                known[name]["best_weights"] = callback.best_weights
        return known


def _tell_of_others() -> None:
    """Has Keras tell a `CommitStateCallback` of the callbacks beside it, which a callback is not told of."""
    begin = keras.callbacks.CallbackList.on_train_begin

    @functools.wraps(begin)
    def on_train_begin(callbacks: Any, logs: Optional[Dict[str, Any]] = None) -> None:
        begin(callbacks, logs)
        for callback in callbacks.callbacks:
            if isinstance(callback, CommitStateCallback):
                callback.all_have_begun(callbacks.callbacks)

    keras.callbacks.CallbackList.on_train_begin = on_train_begin


_tell_of_others()


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
    which must be new. Optimisers that the training function makes are told from each other by their order, so make the same ones on each
    rank.

    Loss scaling (`mixed_float16`) belongs inside: ``DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))``, so that
    all ranks skip a step, or none does.

    On JAX and TensorFlow, gradients go through main memory, also from a GPU. On TensorFlow, a model that is compiled by XLA
    (`jit_compile`) fails at its first step; the error's text names the way out. On JAX each rank is a JAX of one process: the
    first step of one with `jax.distributed` raises `ValueError`.

    Raises:
        ValueError: the optimiser has been used already. Later, a `LossScaleOptimizer` is put around the result, as
            `model.compile` does by itself under the policy `mixed_float16`.
    """
    if optimizer.built:
        raise ValueError("the optimizer has state already: wrap it before the first step")
    kind = type(optimizer)

    class Averaging(kind):  # type: ignore[misc,valid-type]
        #: For `KerasState`.
        averages_gradients = True

        #: Whether the optimiser has its settings.
        is_made = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._name_of_calls = _keras_names.of_calls(self.name)

        def __setattr__(self, name: str, value: Any) -> None:
            # A LossScaleOptimizer takes away the factor of the optimiser that it is put around: the only moment to refuse it that
            # every rank comes to.
            if name == "loss_scale_factor" and value is None and self.is_made:
                raise ValueError(_LOSS_SCALE_OUTSIDE)
            super().__setattr__(name, value)

        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            super().apply(self._averaged(grads), trainable_variables)

        def _averaged(self, grads: Sequence[Any]) -> List[Any]:
            present = [gradient for gradient in grads if gradient is not None]
            averages = iter(_keras_gradients.averages(present, self._name_of_calls))
            return [None if gradient is None else next(averages) for gradient in grads]

        if issubclass(kind, keras.optimizers.LossScaleOptimizer):

            # JAX's steps call it. That of other optimisers calls `apply`.
            def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
                return super().stateless_apply(optimizer_variables, self._averaged(grads), trainable_variables)

    Averaging.__name__ = Averaging.__qualname__ = kind.__name__
    made = Averaging.from_config(optimizer.get_config())
    made.is_made = True
    return made
