"""A world of one, without a driver: everything works, so that a program can be debugged by itself."""

import array
import functools
import inspect
import json
import pickle
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy
import pytest

import elastic_node as en
from programs.device import OnGpu


@pytest.fixture(autouse=True)
def initialized():
    en.init()
    yield
    en.shutdown()


def test_it_is_rank_0_of_1():
    assert (en.rank(), en.size()) == (0, 1)
    assert (en.local_rank(), en.local_size(), en.cross_rank(), en.cross_size()) == (0, 1, 0, 1)
    en.init()
    assert en.is_initialized()


def test_a_child_by_spawn_that_calls_init_is_a_world_of_its_own():
    program = Path(__file__).parent / "programs" / "children.py"
    done = subprocess.run([sys.executable, program, "spawn"], capture_output=True, text=True, timeout=60)
    child = json.loads(done.stdout.splitlines()[0])
    assert child == {"child_of": 0, "place": [0, 1], "allreduce": 1.0, "rank": 0, "is_initialized": True}, done.stderr


def test_a_section_changes_nothing_and_lets_its_exception_through():
    with pytest.raises(KeyError, match="of the program"), en.section("evaluation", within=60):
        raise KeyError("of the program")
    with pytest.raises(ValueError, match="within must be a number of seconds from 0 on"):
        with en.section("evaluation", within=-1):
            pass


def test_what_is_no_number_is_refused_with_its_name():
    en.report(loss=0.5, accuracy=numpy.float32(0.25), step=3)
    with pytest.raises(TypeError, match="'loss' was reported as a list, not a number"):
        en.report(loss=[0.5])
    with pytest.raises(TypeError, match="'loss' was reported as a str, not a number"):
        en.report(loss="half")


def test_nothing_is_there_before_init():
    en.shutdown()
    assert not en.is_initialized()
    with pytest.raises(ValueError, match="init"):
        en.rank()
    with pytest.raises(ValueError, match="init"):
        en.report(loss=0.5)


@pytest.mark.parametrize(
    "values",
    [
        numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        numpy.arange(6, dtype=numpy.float64),
        numpy.arange(6, dtype=numpy.float16),
        numpy.arange(6, dtype=numpy.uint8),
        numpy.arange(6, dtype=numpy.int32),
        numpy.arange(6, dtype=numpy.int64),
        numpy.array(3.5),
        numpy.zeros((0, 4)),
    ],
    ids=lambda values: f"{values.dtype}{values.shape}",
)
def test_arrays_of_every_type_go_through_in_place(values):
    memory = values.copy()
    result = en.allreduce_(memory, op=en.Sum)
    assert result is memory
    numpy.testing.assert_array_equal(memory, values)
    numpy.testing.assert_array_equal(en.allreduce(values, op=en.Max), values)
    numpy.testing.assert_array_equal(en.broadcast(values, 0), values)


def test_other_memory_goes_through():
    numbers = array.array("d", [1.0, 2.0])
    en.allreduce_(numbers)
    assert list(numbers) == [1.0, 2.0]
    en.broadcast_(bytearray(b"abc"), 0)
    assert en.allreduce(3, op=en.Sum) == 3
    assert en.allreduce(0.5) == 0.5
    assert en.allreduce(3) == 3.0
    assert en.allreduce(numpy.array([-3, 5]), postscale_factor=0.5).tolist() == [-1, 2], "integers go towards zero"


def test_what_cannot_be_done_is_said():
    with pytest.raises(NotImplementedError, match="Adasum"):
        en.allreduce(numpy.ones(3), op=en.Adasum)
    with pytest.raises(ValueError, match="contiguous"):
        en.allreduce_(numpy.ones((4, 4))[:, ::2])
    with pytest.raises(ValueError, match="cannot be reduced"):
        en.allreduce(numpy.arange(3, dtype=numpy.int16), op=en.Sum)
    with pytest.raises(ValueError, match="truth values"):
        en.allreduce(numpy.array([True]), op=en.Sum)
    for objects in (None, numpy.array([None])):
        with pytest.raises(TypeError, match="Python objects"):
            en.broadcast(objects, 0)
    with pytest.raises(TypeError, match="no memory to share"):
        en.allreduce_(object())
    with pytest.raises(TypeError, match="no reduction"):
        en.allreduce(numpy.ones(1), op="middle")
    with pytest.raises(TypeError, match="name=…"):
        en.allreduce(numpy.ones(1), "a name")
    with pytest.raises(ValueError, match="do not deal 3 rows"):
        en.alltoall(numpy.ones(3), splits=[2])
    for dtype, named in (("int8", "int8"), ("complex64", "complex64"), (">f4", ">f4")):
        with pytest.raises(ValueError, match=rf"^{named}: elements of this type"):
            en.allreduce(numpy.ones(2, dtype))
        with pytest.raises(ValueError, match=rf"^{named}: elements of this type"):
            en.reducescatter(numpy.ones(2, dtype))
    masked = numpy.ma.masked_array([1.0, 2.0], mask=[False, True])
    for call in (en.allreduce, en.allreduce_, en.allgather, en.reducescatter, lambda array: en.broadcast(array, 0)):
        with pytest.raises(TypeError, match=r"masked array would lose its mask.*filled"):
            call(masked)
    for call in (en.broadcast, en.broadcast_, en.broadcast_object):
        for root in (-1, 1):
            with pytest.raises(ValueError, match=f"there is no rank {root} in a world of 1"):
                call(numpy.ones(1), root)
    read_only = numpy.ones(2)
    read_only.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        en.allreduce_(read_only)


def test_an_array_on_a_gpu_needs_nccl():
    with pytest.raises(BufferError, match=r"on GPU 3, and the collectives of this group are the CPU's.*\.cpu\(\)"):
        en.allreduce_(OnGpu([1.0], 3))


def test_objects_and_process_sets():
    assert en.broadcast_object({"a": [1]}) == {"a": [1]}
    assert en.allgather_object("x") == ["x"]
    only = en.add_process_set([0])
    assert (only.included(), only.rank(), only.size()) == (True, 0, 1)
    assert en.allreduce(2.0, process_set=only) == 2.0
    assert en.remove_process_set(only)
    with pytest.raises(ValueError, match="add_process_set"):
        en.allreduce(2.0, process_set=only)
    with pytest.raises(ValueError, match="no different ranks"):
        en.add_process_set([0, 1])


def test_handles():
    memory = numpy.ones(3)
    handle = en.allreduce_async_(memory)
    assert en.synchronize(handle) is memory
    assert en.poll(handle)
    assert en.synchronize(handle) is memory, "a second wait is no error"


def test_a_timeline_has_the_calls_of_its_time(tmp_path):
    path = tmp_path / "timeline.json"
    en.allreduce(1.0, name="before")
    en.start_timeline(str(path), mark_cycles=True)
    en.allreduce(1.0, name="during")
    en.stop_timeline()
    en.allreduce(1.0, name="after")
    events = json.loads(path.read_text())
    names = [event.get("name") for event in events]
    assert {"start_time_since_epoch_in_micros", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= set(names)
    assert "allreduce.during" in str(events)
    assert "before" not in str(events) and "after" not in str(events)
    assert [event["ph"] for event in events].count("B") == [event["ph"] for event in events].count("E") == 2


def test_a_state_goes_back_to_what_was_saved():
    """Horovod's quirk 6: changes inside of a value survived there."""
    state = en.elastic.ObjectState(numbers=[1], weights=numpy.zeros(2), step=0)
    state.save()
    state.numbers.append(2)
    state.weights += 1
    state.step = 5
    state.restore()
    assert (state.numbers, state.step) == ([1], 0)
    numpy.testing.assert_array_equal(state.weights, [0, 0])
    state.weights += 1
    state.commit()
    state.weights += 1
    state.restore()
    numpy.testing.assert_array_equal(state.weights, [1, 1])


def test_run_returns_what_the_function_returns():
    calls = []

    @en.elastic.run
    def train(state, factor, offset=0):
        calls.append(state.step)
        state.step += 1
        state.commit()
        state.step = 100
        state.restore()
        return state.step * factor + offset

    assert train(en.elastic.ObjectState(step=0), 10, offset=3) == 13
    assert calls == [0]


@pytest.mark.parametrize("call", [lambda: en.allreduce(1.0), lambda: train_nothing(en.elastic.ObjectState())])
def test_what_follows_the_end_of_training_is_told_to_move_into_the_training_function(call):
    train_nothing(en.elastic.ObjectState())
    assert en.rank() == 0
    with pytest.raises(en.ElasticError, match="training has ended: .* into the training function, behind its loop"):
        call()


@en.elastic.run
def train_nothing(state):
    pass


def test_the_functions_own_error_goes_through():
    @en.elastic.run
    def train(state):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(en.elastic.ObjectState(step=0))


def test_a_state_that_cannot_be_saved_says_why():
    @en.elastic.run
    def train(state):
        state.handle = open(__file__)
        state.commit()

    with pytest.raises(TypeError, match="'handle' in the state cannot be saved: .*pickle"):
        train(en.elastic.ObjectState(step=0))


def test_an_error_that_only_the_program_knows_how_to_make_is_told_of_within_another():
    class Refusal(Exception):
        def __init__(self, code, text):
            super().__init__(code, text)

    class Refusing:
        def __reduce__(self):
            raise Refusal(7, "no")

    with pytest.raises(pickle.PicklingError, match="'odd' in the state cannot be saved: Refusal: ") as raised:
        en.elastic.ObjectState(odd=Refusing()).save()
    assert isinstance(raised.value.__cause__, Refusal)


@pytest.mark.parametrize("name", ["commit", "save", "on_reset"])
def test_an_attribute_with_the_name_of_a_method_is_refused(name):
    with pytest.raises(ValueError, match=f"cannot be named '{name}'"):
        en.elastic.ObjectState(**{name: 0})


def test_run_wants_a_state():
    with pytest.raises(TypeError, match="State"):
        en.elastic.run(lambda state: None)({"step": 0})


def on_another_thread(call):
    """The result or the exception of a call on a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(call)
        return done.exception() or done.result()


def test_another_thread_than_that_of_init_is_refused_within_run_and_may_save_outside_of_it():
    state = en.elastic.ObjectState(step=0)
    calls = [state.commit, state.save, state.restore, state.check_host_updates]
    assert [on_another_thread(call) for call in calls] == [None] * 4
    # Any thread may ask for ranks, also before the first collective.
    assert on_another_thread(en.rank) == 0 and on_another_thread(en.size) == 1

    @en.elastic.run
    def train(state):
        state.step += 1
        return [on_another_thread(call) for call in calls]

    others = [lambda: train(state), en.shutdown, lambda: en.note("text"), lambda: en.report(loss=1)]
    refused = [on_another_thread(call) for call in others]
    assert state.step == 0
    refused += train(state)
    assert [type(error) for error in refused] == [RuntimeError] * 8, refused
    assert all("on the thread that called elastic_node.init()" in str(error) for error in refused)
    assert state.step == 1


def test_the_first_collective_on_another_thread_is_refused():
    refused = on_another_thread(lambda: en.allreduce(1.0))
    assert type(refused) is RuntimeError and "elastic_node.init()" in str(refused)
    assert en.allreduce(1.0) == 1.0
    assert on_another_thread(lambda: en.allreduce(2.0)) == 2.0


async def coroutine(state):
    state.commit()


def generator(state):
    yield state.commit()


async def asynchronous_generator(state):
    yield state.commit()


class Called:
    async def __call__(self, state):
        state.commit()


@pytest.mark.parametrize(
    "func, name",
    [
        (coroutine, "coroutine is a coroutine function"),
        (generator, "generator is a generator function"),
        (asynchronous_generator, "asynchronous_generator is an asynchronous generator function"),
        (functools.partial(functools.partial(coroutine)), "coroutine is a coroutine function"),
        (functools.partial(generator), "generator is a generator function"),
        (Called(), "Called is a coroutine function"),
    ],
)
def test_a_function_whose_call_does_not_train_is_refused(func, name):
    with pytest.raises(TypeError, match=rf"{name}.*asyncio\.run"):
        en.elastic.run(func)


@pytest.mark.parametrize("func", [coroutine, generator, asynchronous_generator])
def test_what_such_a_function_returns_is_refused_too(func):
    made = []

    def train(state):
        made.append(func(state))
        return made[0]

    kind = func.__name__.replace("_", " ")
    with pytest.raises(TypeError, match=rf"train has returned an? {kind}.*asyncio\.run"):
        en.elastic.run(train)(en.elastic.ObjectState())
    if inspect.iscoroutine(made[0]):
        assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
    elif inspect.isgenerator(made[0]):
        assert inspect.getgeneratorstate(made[0]) == inspect.GEN_CLOSED


def test_equal_content_gives_equal_bytes():
    """G-6: ranks prove by a digest that they hold the same; content taken over counts as content computed."""
    from elastic_node import _codec

    original = {"name": "a" * 3, "other": "aaa", "weights": numpy.arange(5.0), "list": [1, (2, 3)]}
    header, buffers = _codec.encode(original)
    copied = _codec.decode(header, [bytearray(buffer) for buffer in buffers])
    again, buffers_again = _codec.encode(copied)
    assert header == again
    assert [bytes(buffer) for buffer in buffers] == [bytes(buffer) for buffer in buffers_again]


def test_what_refers_to_itself_is_encoded_all_the_same():
    from elastic_node import _codec

    loop = [1]
    loop.append(loop)
    copied = _codec.decode(*_codec.encode(loop))
    assert copied[1] is copied


def test_the_command_is_installed_with_the_package():
    command = Path(sysconfig.get_path("scripts")) / "elastic-node"
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"elastic-node {metadata.version('elastic-node')}\n"


def test_ctrl_c_ends_a_wait():
    """The other rank never comes to the barrier."""
    program = """
import threading, os, signal
from elastic_node import _native
# Whoever runs the tests may ignore it, as shells do for what they run in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
meetings = [_native.Meeting("127.0.0.1") for _ in range(2)]
addresses = [meeting.address for meeting in meetings]
groups = [None, None]
def form(rank):
    groups[rank] = meetings[rank].form(rank, addresses, [7] * 32, 60.0)
threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    groups[0].barrier().wait()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "interrupted\n", done.stderr


def test_g_9_a_callback_that_does_not_return_delays_the_exit_and_does_not_prevent_it():
    program = """
import threading, time
from elastic_node import _native
meeting = _native.Meeting("127.0.0.1")
group = meeting.form(0, [meeting.address], [7] * 32, 60.0)
begun = threading.Event()
def callback(error):
    begun.set()
    time.sleep(600)
handle = group.barrier(callback)
begun.wait()
print("leaving", flush=True)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("leaving\n", 0), done.stderr
    assert time.monotonic() - begun >= 5, "the callback had its time"
