"""`ELASTIC_BACKEND_FOR=gloo`: scripts and frameworks that ask for gloo get our collectives, and the same numbers."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
    pytest.skip("before torch 2.14 the name gloo cannot be taken over", allow_module_level=True)


@pytest.mark.parametrize("framework", ["plain", "accelerate", "trainer"])
def test_what_asks_for_gloo_gets_ours_and_the_same_numbers(ranks, monkeypatch, framework):
    if framework != "plain":
        pytest.importorskip("transformers" if framework == "trainer" else framework)
    of_gloo = ranks("named_gloo.py", framework)[0].split()[-2:]
    monkeypatch.setenv("ELASTIC_BACKEND_FOR", "gloo")
    of_ours = ranks("named_gloo.py", framework)[0].split()[-2:]
    assert (of_gloo[0], of_ours[0]) == ("ProcessGroup", "ProcessGroupElastic")
    assert of_gloo[1] == of_ours[1], "the same numbers"


def test_run_takes_gloo_over_for_an_unmodified_script(job):
    done = job("named_gloo.py", "plain", workers=2, flags=["--backend-for", "gloo"])
    assert done.code == 0 and done.output.count("ProcessGroupElastic") == 2, done.output


def test_another_name_is_refused():
    import subprocess

    environment = {**os.environ, "ELASTIC_BACKEND_FOR": "nccl"}
    told = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True)
    assert told.returncode != 0 and "only gloo can be taken over" in told.stderr
