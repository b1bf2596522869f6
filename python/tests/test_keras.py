"""`elastic_node.keras` with the real Keras, on each of its backends that is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import PATIENCE_S

if find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)


def needs(backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_keras_averages_gradients_and_survives_the_death_of_a_rank_in_place(job, backend):
    needs(backend)
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = job("keras_survivor.py", workers=2, flags=["--min-np", "2"], environment=environment)
    assert done.code == 0, done.output
    ends = done.said()
    assert len(ends) == 2 and all(said["epoch"] == 4 for said in ends), done.output
    assert ends[0]["weights"] == ends[1]["weights"], "one history"
    assert ends[0]["loss"] < 0.1, "it has learned"
    assert sorted(said["calls"] for said in ends) == [1, 2], "the survivor went on in its process"
    assert [said["began_at"] for said in ends] == [[1, 2]] * 2, "from the last commit"
    assert max(said["difference"] for said in ends) < 1e-6, "the weights of one rank with the whole batches"


def test_steps_that_xla_compiles_on_tensorflow_are_refused_with_the_way_out():
    needs("tensorflow")
    program = """
import keras, numpy, elastic_node, elastic_node.keras
elastic_node.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(optimizer=elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD()), loss="mse", jit_compile=True)
try:
    elastic_node.keras.KerasState(model)
except ValueError as error:
    print(error)
model.fit(numpy.ones((2, 2)), numpy.ones((2, 1)), verbose=0)
"""
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert "give model.compile(..., jit_compile=False)" in done.stdout, "the state's"
    assert done.returncode == 1 and "needs_jit_compile_False" in done.stderr, f"the first step's: {done.stderr}"
