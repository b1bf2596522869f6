"""Programs that documents print run as they stand there: the one on the README's first screen, and those of docs/frameworks.md."""

import re
from importlib.util import find_spec

import pytest
from conftest import ROOT


def test_the_readmes_program_learns_the_same_on_each_worker(job, tmp_path):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README has no program in Python"
    (tmp_path / "train.py").write_text(block[1])
    done = job("train.py", workers=2, root=tmp_path)
    assert done.code == 0, done.output
    for rank in range(2):
        assert f"rank {rank} of 2: weight 3.00" in done.output, done.output


@pytest.mark.parametrize(
    "heading, framework",
    [("Lightning", "lightning"), ("HF Trainer", "transformers"), ("accelerate", "accelerate"), ("Keras", "keras")],
)
def test_an_example_of_a_framework_trains_one_model_on_all_ranks(job, heading, framework):
    """Each rank has samples of its own: ranks that trained alone would end with other weights."""
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    environment = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if heading == "Keras":
        environment["KERAS_BACKEND"] = "torch"
    done = job("frameworks_document.py", heading, workers=2, environment=environment)
    assert done.code == 0, done.output
    ends = done.said()
    assert sorted(said["rank"] for said in ends) == [0, 1], done.output
    assert ends[0]["weights"] == ends[1]["weights"], done.output
