"""A worker offers the stacks of its threads to the agent, and never at the cost of its program."""

import json
import subprocess
import sys

import pytest

from conftest import PATIENCE_S

#: Beginning of each program below. `files` are the descriptors of the file that the agent looks for.
PRELUDE = """
import faulthandler, json, os, signal, sys
from elastic_node import _stacks


def files():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if link == "/memfd:elastic-stacks (deleted)":
            found.append(int(name))
    return found


def asked():
    os.kill(os.getpid(), _stacks.SIGNAL)
    return open("/proc/self/fd/%d" % files()[0]).read()
"""


def run(tmp_path, program):
    """The output of the program, from JSON."""
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + program)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_stacks_are_written_at_the_signal_and_again_when_the_file_was_emptied(tmp_path):
    first, second, files = run(
        tmp_path,
        """
def compute():
    first = asked()
    os.truncate("/proc/self/fd/%d" % files()[0], 0)
    return first, asked()

_stacks.offer()
_stacks.offer()
print(json.dumps([*compute(), [os.get_inheritable(file) for file in files()]]))
""",
    )
    for stack in (first, second):
        assert stack.startswith("Current thread 0x")
        assert stack.count("in compute") == 1 and "program.py" in stack
    assert files == [False], "one file, which no other program inherits"


@pytest.mark.parametrize(
    "handle",
    [
        "signal.signal(_stacks.SIGNAL, heard)",
        # Python knows of no handler here: native code has it.
        "faulthandler.register(_stacks.SIGNAL, open(os.devnull, 'w'), chain=False)",
    ],
    ids=["Python's", "native"],
)
def test_a_handler_of_the_program_stays(tmp_path, handle):
    heard, files = run(
        tmp_path,
        f"""
def heard(*_):
    count[0] += 1

count = [0]
{handle}
_stacks.offer()
os.kill(os.getpid(), _stacks.SIGNAL)
print(json.dumps([count[0], files()]))
""",
    )
    assert (heard, files) == (int("heard" in handle), [])


def test_where_no_such_file_can_be_made_the_program_goes_on(tmp_path):
    assert run(
        tmp_path,
        """
del os.memfd_create
_stacks.offer()
print(json.dumps([files(), faulthandler.unregister(_stacks.SIGNAL)]))
""",
    ) == [[], False]


def test_a_forked_child_offers_nothing_and_its_parent_still_does(tmp_path):
    ended, stack = run(
        tmp_path,
        """
from elastic_node import _context


class Session:
    has_driver = True

    def abandon(self):
        pass


_context._native.Session = Session
_context.init()
child = os.fork()
if child == 0:
    # Nobody handles it now: it ends the child, as it ends a program that has nothing to do with any of this.
    os.kill(os.getpid(), _stacks.SIGNAL)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(json.dumps([os.WIFSIGNALED(status) and os.WTERMSIG(status) == _stacks.SIGNAL, asked()]))
""",
    )
    assert ended
    assert stack.startswith("Current thread 0x")


def test_a_worker_of_a_job_offers_and_a_program_by_itself_does_not(tmp_path, job):
    told = "print(json.dumps({'files': len(files())}))\n"
    (tmp_path / "worker.py").write_text(PRELUDE + "import elastic_node as en\nen.init()\nen.allreduce(1)\n" + told)
    finished = job("worker.py", workers=1, root=tmp_path)
    assert finished.code == 0, finished.output
    assert [line["files"] for line in finished.said()] == [1]
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "worker.py")], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert json.loads(alone.stdout) == {"files": 0}, alone.stderr
