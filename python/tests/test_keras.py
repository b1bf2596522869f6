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


def run_alone(backend: str, settings: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Trains a model without a job: one step, after the lines in `before`."""
    program = f"""
import keras, numpy, elastic_node, elastic_node.keras
elastic_node.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD())
model.compile(optimizer=optimizer, loss="mse", {settings})
{before}
model.fit(numpy.ones((2, 2)), numpy.ones((2, 1)), verbose=0)
"""
    command, environment = [sys.executable, "-c", program], {**os.environ, "KERAS_BACKEND": backend}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


def test_steps_that_xla_compiles_on_tensorflow_are_refused_with_the_way_out():
    needs("tensorflow")
    before = """
try:
    elastic_node.keras.KerasState(model)
except ValueError as error:
    print(error)
"""
    done = run_alone("tensorflow", "jit_compile=True", before)
    assert "give model.compile(..., jit_compile=False)" in done.stdout, f"the state's: {done.stderr}"
    assert done.returncode == 1 and "needs_jit_compile_False" in done.stderr, f"the first step's: {done.stderr}"


def test_a_jax_of_several_processes_is_refused():
    needs("jax")
    done = run_alone("jax", "", "import jax; jax.process_count = lambda: 2")
    assert done.returncode == 1 and "a JAX of one process each" in done.stderr, done.stderr
