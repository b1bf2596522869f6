"""The average of gradients for Keras' optimisers, on each of its backends. `keras.DistributedOptimizer` calls it.

torch's steps run in Python, so its gradients are averaged as they are. Steps of JAX and TensorFlow are compiled, and call back into
Python with NumPy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Sequence

import keras

from . import _context, _reductions

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

#: Keras' backend in this process.
BACKEND: str = keras.backend.backend()

#: The backends that `averages` knows.
KNOWN = ("torch", "jax", "tensorflow")

#: The name of TensorFlow's operation, which XLA's error shows: it has no such operation.
_TENSORFLOW_OPERATION = "DistributedOptimizer_needs_jit_compile_False_in_model_compile"


def averages(gradients: Sequence[Any], name: str) -> List[Any]:
    """The averages of all ranks' gradients, in their order.

    Args:
        gradients: of the backend's type, or its stand-in while a step is traced; none of them `None`.
        name: what tells this optimiser's calls from those of another one.

    Raises:
        CollectiveError: a worker was lost, or the generation was aborted. From a compiled step it comes as an error of the
            backend; `_context.uncovered` has the original.
        ValueError: JAX has several processes.
    """
    if not gradients:
        return []
    if BACKEND == "torch":
        return _reductions.grouped_allreduce(gradients, name=name)
    # A compiled step runs on threads of the backend, which cannot enter the first generation.
    _context.world()
    return _in_jax(gradients, name) if BACKEND == "jax" else _in_tensorflow(gradients, name)


def _in_jax(gradients: Sequence[Any], name: str) -> List[Any]:
    import jax
    from jax.experimental import io_callback

    if jax.process_count() > 1:
        raise ValueError(
            "JAX averages gradients among its own processes (jax.distributed), and DistributedOptimizer among ranks that are a JAX "
            "of one process each: leave out one of them"
        )
    struct: Any = jax.ShapeDtypeStruct
    shapes = [struct(gradient.shape, gradient.dtype) for gradient in gradients]
    # Not ordered: the tokens that order calls would keep the error of a failed call for all later steps. The steps of one
    # optimiser follow each other by their data.
    averaged: List[Any] = io_callback(_on_host(name), shapes, *gradients, ordered=False)
    return averaged


def _in_tensorflow(gradients: Sequence[Any], name: str) -> List[Any]:
    import tensorflow

    # Those of an embedding are slices.
    dense = [tensorflow.convert_to_tensor(gradient) for gradient in gradients]
    types = [gradient.dtype for gradient in dense]
    averaged = tensorflow.numpy_function(_on_host(name), dense, types, name=_TENSORFLOW_OPERATION)
    for average, gradient in zip(averaged, dense):
        average.set_shape(gradient.shape)
    return list(averaged)


def _on_host(name: str) -> Callable[..., List[NDArray[numpy.generic]]]:
    """The function that a compiled step calls, on a thread of the backend."""

    def average(*given: Any) -> List[NDArray[numpy.generic]]:
        import numpy

        try:
            return _reductions.grouped_allreduce([numpy.asarray(gradient) for gradient in given], name=name)
        except BaseException as error:
            _context.cover(error)
            raise

    return average
