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


def trained(job, program: str, backend: str):
    """A job of two workers on a backend of Keras, one of which is replaced; it has succeeded."""
    needs(backend)
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = job(program, workers=2, flags=["--min-np", "2"], environment=environment)
    assert done.code == 0, done.output
    return done


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_keras_averages_gradients_and_survives_the_death_of_a_rank_in_place(job, backend):
    done = trained(job, "keras_survivor.py", backend)
    ends = done.said()
    assert len(ends) == 2 and all(said["epoch"] == 4 for said in ends), done.output
    assert ends[0]["weights"] == ends[1]["weights"], "one history"
    assert ends[0]["loss"] < 0.1, "it has learned"
    assert sorted(said["calls"] for said in ends) == [1, 2], "the survivor went on in its process"
    assert [said["began_at"] for said in ends] == [[1, 2]] * 2, "from the last commit"
    assert max(said["difference"] for said in ends) < 1e-6, "the weights of one rank with the whole batches"


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_all_ranks_skip_a_step_of_infinite_gradients_and_a_finished_epoch_is_not_trained_again(job, backend):
    done = trained(job, "keras_scaled.py", backend)
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    ends = done.said()
    assert len(ends) == 2 and ends[0] == ends[1], done.output
    assert ends[0]["halved"] > 0, "the case under test: gradients were infinite"
    assert ends[0]["steps"] + ends[0]["halved"] == 3 * 8, "each batch counts once"


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_an_optimizer_that_each_generation_makes_anew_averages_with_that_of_a_newcomer(job, backend):
    """Keras counts names of optimisers in each process: the survivor's is `sgd_3`, the newcomer's `sgd`."""
    done = trained(job, "keras_stages.py", backend)
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    ends = done.said()
    assert len(ends) == 2 and all(said["epochs"] == 6 and said["difference"] < 1e-5 for said in ends), done.output


def test_keras_callbacks_that_watch_a_value_know_it_after_a_loss(job):
    done = trained(job, "keras_stopped.py", some_backend())
    assert [exited for exited in done.kinds("worker_exited") if "signal 9" in str(exited)], done.output
    # Best in the second epoch: two without a better value halve the rate, three stop the training.
    end = {"epochs": 5, "rate": pytest.approx(0.005), "is_best": True, "anew": 3.0, "saved": [1, 2]}
    assert done.said() == [end] * 2, done.output


def test_ranks_with_other_numbers_of_batches_are_told_so_as_training_begins(job):
    done = job("keras_uneven.py", workers=2, flags=["--max-restarts", "0"], environment={"KERAS_BACKEND": some_backend()})
    assert done.code == 0, done.output
    for said in done.said():
        assert "an epoch has 4 batches on rank 1 and 5 on rank 0" in said["refusal"] and said["steps"] == 4, said
    assert len(done.said()) == 2, done.output


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


def some_backend() -> str:
    found = [backend for backend in ("torch", "jax", "tensorflow") if find_spec(backend)]
    return found[0] if found else pytest.skip("Keras has no backend")


def test_loss_scaling_around_the_average_is_refused_with_the_right_order():
    before = """
keras.mixed_precision.set_global_policy("mixed_float16")
half = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
keras.mixed_precision.set_global_policy("float32")
wraps = [
    keras.optimizers.LossScaleOptimizer,
    lambda optimizer: half.compile(optimizer=optimizer, loss="mse"),
]
for wrap in wraps:
    try:
        wrap(elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD()))
    except ValueError as error:
        print(error)
half.compile(optimizer=elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD()), loss="mse", auto_scale_loss=False)
print(type(half.optimizer).__name__)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("give DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))") == 2, done.stdout
    assert done.stdout.splitlines()[-1] == "SGD", "without loss scaling it is taken"


def test_a_commit_of_a_model_that_was_compiled_again_with_another_optimizer_is_refused():
    before = """
state = elastic_node.keras.KerasState(model)
state.commit()
model.compile(optimizer=elastic_node.keras.DistributedOptimizer(keras.optimizers.Adam()), loss="mse", jit_compile=False)
try:
    state.commit()
except ValueError as error:
    print(error)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert "the model was compiled again" in done.stdout, done.stdout


def test_keras_callbacks_of_an_earlier_training_do_not_take_what_those_of_a_later_one_know():
    before = """
state = elastic_node.keras.KerasState(model, epoch=0)
x, y, contents = numpy.ones((2, 2)), numpy.ones((2, 1)), []
class Captures(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        contents.append(state.capture())
def train(epochs):
    stops = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
    counts = elastic_node.keras.UpdateEpochStateCallback(state)
    callbacks = [stops, counts, elastic_node.keras.CommitStateCallback(state), Captures()]
    model.fit(x, y, verbose=0, initial_epoch=state.epoch, epochs=epochs, callbacks=callbacks)
    return stops.best
train(1)
train(3)
# Lost after the later one's first epoch.
state.apply(contents[1])
print(train(1), state.epoch)
print(train(2) == contents[1]["monitored"][1]["EarlyStopping of loss"]["best"])
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["None 2", "True"], done.stdout


def test_a_schedule_of_keras_goes_on_from_the_rate_before_the_epoch_that_begins_again():
    before = """
state = elastic_node.keras.KerasState(model, epoch=0)
x, y, contents = numpy.ones((4, 2)), numpy.ones((4, 1)), []
class Captures(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        contents.append(state.capture())
def train(epochs):
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    counts = elastic_node.keras.UpdateEpochStateCallback(state)
    callbacks = [halves, counts, elastic_node.keras.CommitStateCallback(state), Captures()]
    model.fit(x, y, verbose=0, batch_size=2, initial_epoch=state.epoch, epochs=epochs, callbacks=callbacks)
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
optimizer.learning_rate = 1.0
print(train(3))
for lost in (0, 3):
    # Lost in the first batch of the first epoch, and in the last one of the second.
    state.apply(contents[lost])
    print(state.epoch, train(3))
state.apply(contents[3])
optimizer.learning_rate = 8.0
print(train(3))
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0.125", "0 0.125", "1 0.125", "2.0"], "the last one was set by the program"


def test_a_keras_callback_behind_the_commit_is_warned_of_with_the_order_that_is_right():
    before = """
state = elastic_node.keras.KerasState(model)
callbacks = [elastic_node.keras.CommitStateCallback(state), keras.callbacks.EarlyStopping("loss")]
for order in (callbacks, callbacks[::-1]):
    model.fit(numpy.ones((2, 2)), numpy.ones((2, 1)), verbose=0, callbacks=order)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("EarlyStopping of loss is behind CommitStateCallback") == 1, done.stderr


def test_a_state_of_another_model_or_optimizer_is_refused():
    before = """
def state_of(units, optimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(optimizer=optimizer, loss="mse")
    return elastic_node.keras.KerasState(model)
content = state_of(1, keras.optimizers.SGD()).capture()
state_of(1, keras.optimizers.SGD()).apply(content)
for other in (state_of(1, keras.optimizers.Adam()), state_of(3, keras.optimizers.SGD())):
    try:
        other.apply(content)
    except ValueError as error:
        print(error)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    optimizer, model = done.stdout.splitlines()
    assert "the state has 4 variables" in optimizer and "this rank's have 8" in optimizer, done.stdout
    assert "has shape (2, 1), and this rank's has (2, 3)" in model, done.stdout


def test_further_optimizers_of_the_model_and_of_the_state_are_part_of_it_and_are_built():
    before = """
def made(*built):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(), loss="mse")
    model.further, own, second = [keras.optimizers.Adam()], keras.optimizers.Adam(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for optimizer in [*model.further, own][:len(built)]:
        optimizer.build(model.trainable_variables)
    return model, own, second
def moved(optimizer, model):
    gradients = [keras.ops.ones(variable.shape) for variable in model.trainable_variables]
    optimizer.apply(gradients, model.trainable_variables)
def numbers(*parts):
    return [keras.ops.convert_to_numpy(variable).tolist() for part in parts for variable in part.variables]
model, own, second = made(1, 1)
state = elastic_node.keras.KerasState(model, own=own, parts=[second])
moved(own, model); moved(model.further[0], model)
second.set_weights([numpy.full((2, 1), 3.0), numpy.ones(1)])
content = state.capture()
other, other_own, other_second = made(1, 1)
taken = elastic_node.keras.KerasState(other, own=other_own, parts=[other_second])
taken.apply(content)
print(taken.own is other_own, taken.parts[0] is other_second)
print(numbers(other, other.further[0], other_own, other_second) == numbers(model, model.further[0], own, second))
for built in ((), (1,)):
    unbuilt, unbuilt_own, _ = made(*built)
    try:
        elastic_node.keras.KerasState(unbuilt, own=unbuilt_own)
    except ValueError as error:
        print(error)
other.late = keras.optimizers.Adam()
try:
    taken.commit()
except ValueError as error:
    print(error)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    stays, equal, both, one, late = done.stdout.splitlines()
    assert (stays, equal) == ("True True", "True"), done.stdout
    assert "are not built: own, sequential" in both and ".further" in both, both
    assert "are not built: own." in one and "optimizer.build(model.trainable_variables)" in one, one
    assert "the model has got other optimizers" in late and ".late)" in late, late


def test_a_commit_of_exchanged_weights_is_known_to_the_callback_that_exchanges_them_back():
    before = """
model.compile(optimizer=keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9), loss="mse", jit_compile=False)
state = elastic_node.keras.KerasState(model, epoch=0)
x, y, contents = numpy.arange(8.0).reshape(4, 2) / 8, numpy.ones((4, 1)), []
class Captures(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        contents.append(state.capture())
    def on_epoch_end(self, epoch, logs=None):
        contents.append(state.capture())
def train(is_behind):
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    commits = elastic_node.keras.CommitStateCallback(state)
    order = [commits, swaps] if is_behind else [swaps, commits]
    if is_behind:
        order.insert(1, Captures())
    else:
        order.append(Captures())
    counts = elastic_node.keras.UpdateEpochStateCallback(state)
    model.fit(x, y, verbose=0, batch_size=4, shuffle=False, initial_epoch=state.epoch, epochs=4, callbacks=[counts, *order])
    return model.get_weights()
begin = state.capture()
for is_behind in (False, True):
    state.apply(begin)
    contents.clear()
    due = train(is_behind)
    # Lost after the second epoch: its end was committed. The averages begin as the weights.
    state.apply(contents[3])
    print(state.epoch, all(numpy.allclose(one, other) for one, other in zip(train(is_behind), due)))
model.compile(optimizer=elastic_node.keras.DistributedOptimizer(keras.optimizers.SGD()), loss="mse", jit_compile=False)
"""
    done = run_alone(some_backend(), "jit_compile=False", before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 True", "2 True"], done.stdout
