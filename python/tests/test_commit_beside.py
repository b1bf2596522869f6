"""Commits of tensors on a GPU beside the next step, with main memory in the GPU's place: the copies end when the test says so.
`test_on_gpu` has the copies of a real one."""

import threading

import pytest
from conftest import check_torch_survivor

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402
from elastic_node import _codec, _torch_tensors  # noqa: E402

#: Time within which a copy that is let go has ended.
ENDED_WITHIN_S = 60


class FakeGpu:
    """Takes all tensors for a GPU's. Its copies to main memory go on until `end_copies`."""

    def __init__(self, monkeypatch):
        self._may_end = threading.Event()
        self.copies = 0
        monkeypatch.setattr(_torch_tensors, "is_on_gpu", lambda value: True)
        monkeypatch.setattr(_torch_tensors, "copy_beside", self._copy_beside)

    def end_copies(self):
        self._may_end.set()

    def _copy_beside(self, contents):
        self.copies += 1
        staged = [content.clone() for content in contents]
        parts = [torch.zeros_like(content) for content in contents]

        def wait():
            assert self._may_end.wait(ENDED_WITHIN_S)
            for part, content in zip(parts, staged):
                part.copy_(content)

        return parts, wait


@pytest.fixture
def alone():
    en.init()
    yield
    en.shutdown()


def trained():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    state = en.elastic.TorchState(
        model,
        torch.optim.Adam(model.parameters()),
        columns=torch.arange(6.0).reshape(2, 3).T,
        half=torch.randn(5, 3).bfloat16(),
        single=torch.tensor(2.5),
        nothing=torch.empty(0),
        sparse=torch.eye(3).to_sparse(),
        # Its memory is copied before the commit returns.
        storage=torch.arange(4, dtype=torch.uint8).untyped_storage(),
        words=["a", "b"],
    )
    step(state)
    return state


def step(state):
    state.model(torch.randn(4, 8)).square().sum().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.half = state.half + 1
    state.words.append("c")


def test_equal_content_gives_equal_bytes_wherever_it_is(monkeypatch):
    content = trained().capture()
    header, buffers = _codec.encode(content)
    gpu = FakeGpu(monkeypatch)
    gpu.end_copies()
    late_header, late_buffers = _codec.encode(content)
    assert late_header == header and gpu.copies == 1
    assert [bytes(of) for of in late_buffers] == [bytes(of) for of in buffers]
    named = _codec.begin_encoding(content, is_named=True)
    assert len(named.names) == len(named.buffers) == len(buffers)
    assert len(named.late) == len(buffers) - 1, "all but the storage"


def test_a_commit_returns_while_its_tensors_are_copied_and_has_their_values_of_that_time(alone, monkeypatch):
    state, gpus = trained(), []

    @en.elastic.run
    def train(state):
        gpus.append(gpu := FakeGpu(monkeypatch))
        state.commit()
        due = {name: value.clone() for name, value in state.model.state_dict().items()}
        half, words = state.half.clone(), list(state.words)
        step(state)
        # Nothing has waited for the copies so far.
        gpu.end_copies()
        state.restore()
        assert all(torch.equal(value, due[name]) for name, value in state.model.state_dict().items())
        assert torch.equal(state.half, half) and state.words == words
        assert state.nothing.numel() == 0 and state.single.item() == 2.5
        assert torch.equal(state.sparse.to_dense(), torch.eye(3))
        assert list(state.storage) == [0, 1, 2, 3]
        step(state)
        state.commit()

    train(state)
    assert gpus[0].copies >= 2


def test_a_limit_bounds_the_page_locked_memory(monkeypatch):
    content = trained().capture()
    gpu = FakeGpu(monkeypatch)
    gpu.end_copies()
    monkeypatch.setattr(_torch_tensors, "PINNED_MAX_BYTES", 300)
    encoded = _codec.begin_encoding(content)
    late = sum(memoryview(encoded.buffers[number]).nbytes for number in encoded.late)
    assert 0 < late <= 300
    assert len(encoded.late) < len(_codec.encode(content)[1])


def test_a_copy_that_fails_costs_its_commit_and_no_earlier_one(alone, monkeypatch):
    state = trained()

    @en.elastic.run
    def train(state):
        state.commit()
        due = state.half.clone()

        def copy_beside(contents):
            def wait():
                raise RuntimeError("the GPU is gone")

            return [torch.zeros_like(content) for content in contents], wait

        monkeypatch.setattr(_torch_tensors, "is_on_gpu", lambda value: True)
        monkeypatch.setattr(_torch_tensors, "copy_beside", copy_beside)
        step(state)
        state.commit()
        monkeypatch.undo()
        state.restore()
        assert torch.equal(state.half, due)

    train(state)


def test_a_killed_worker_costs_the_steps_since_the_last_commit_that_some_rank_has(job):
    """As `test_torch` has it; each commit's copies take longer than several steps."""
    done = job("torch_survivor.py", workers=2, environment={"COPIES_TAKE_S": "0.05"})
    check_torch_survivor(done)
