"""The program on the README's first screen runs as it stands there."""

import re

from conftest import ROOT


def test_the_readmes_program_learns_the_same_on_each_worker(job, tmp_path):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README has no program in Python"
    (tmp_path / "train.py").write_text(block[1])
    done = job("train.py", workers=2, root=tmp_path)
    assert done.code == 0, done.output
    for rank in range(2):
        assert f"rank {rank} of 2: weight 3.00" in done.output, done.output
