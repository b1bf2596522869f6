"""Sends that fail on the way: one fails alone if nothing of it went out, else all that come after it; none waits for ever."""

import threading

import pytest

torch = pytest.importorskip("torch")

from elastic_node.torch._mail import _Outgoing, _Send  # noqa: E402


class Pair:
    """A group of two that takes messages at once, and refuses some."""

    def __init__(self, refuses):
        self.refuses, self.sent = refuses, []

    def send(self, memory, to, done):
        if self.refuses(memory):
            raise ValueError("no memory to send")
        self.sent.append(memory.tolist())
        if done is not None:
            done(None)


class Waiting:
    """A work, as the mailbox knows it."""

    def __init__(self):
        self.over, self.error = threading.Event(), None

    def landed(self, error):
        self.error = error
        self.over.set()


def sent(refuses):
    """Three messages of one byte, 0 to 2: those that went out, and the end of each."""
    pair, works = Pair(refuses), [Waiting() for _ in range(3)]
    lock = threading.RLock()
    with lock:
        outgoing = _Outgoing(lock, lambda: pair)
        for number, work in enumerate(works):
            outgoing.put(_Send(0, torch.tensor([number], dtype=torch.uint8), work))
    assert all(work.over.wait(60) for work in works)
    return pair.sent, [str(work.error) if work.error else None for work in works]


def test_a_message_of_which_nothing_went_out_fails_alone():
    is_first = iter([True])
    out, errors = sent(lambda memory: next(is_first, False))
    assert out == [[0, 1], [1], [0, 1], [2]]
    assert errors == ["no memory to send", None, None]


def test_a_message_that_broke_off_behind_its_header_fails_the_later_ones_too():
    out, errors = sent(lambda memory: memory.tolist() == [1])
    assert out == [[0, 1], [0], [0, 1]]
    assert errors[0] is None
    assert errors[1:] == ["a message broke off behind its header: no memory to send"] * 2
