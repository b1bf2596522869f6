"""torch's CUDA tensors by NCCL, on a real GPU: skipped where there is none. Several ranks share the first GPU, which needs NCCL
2.30.3 (`ELASTIC_NCCL_LIBRARY` names it, where torch's own is older; `LD_PRELOAD` has torch use that one, too)."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

FLAGS = ["--backend", "nccl", "--min-np", "1"]
ENVIRONMENT = {"DEVICE": "cuda", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_every_operation_of_a_backend_on_cuda_tensors(job):
    done = job("torch_operations.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    assert done.output.count("well") == 2, done.output


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_t_14_an_unmodified_script_trains_as_on_nccl(job, kind):
    ends = {}
    for name in ("nccl", "elastic"):
        done = job(
            "torch_training.py", name, kind, workers=2, flags=FLAGS, environment=ENVIRONMENT, state_folder=name
        )
        assert done.code == 0, done.output
        (ends[name],) = [line[line.index("loss ") :] for line in done.output.splitlines() if "loss " in line]
    # Two ranks: whoever sums them, the bits are the same.
    assert ends["elastic"] == ends["nccl"]


def test_a_distributed_optimizer_averages_as_one_process_would(job):
    done = job("averaged_gradients.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    said = done.said()
    assert sorted(of["rank"] for of in said) == [0, 1]
    assert all(of["is_same_on_all"] for of in said)
    # Hooks run on autograd's thread of the GPU.
    assert all(count > 0 for of in said for count in of["launched_in_backward"]), said


def test_ddp_survives_the_death_of_a_rank_in_place(job):
    done = job("ddp_survivor.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    ends = done.said()
    assert len({str(said["losses"]) for said in ends}) == 1, "G-5: one history"
    assert all(len(said["losses"]) == said["step"] == 40 for said in ends)
    survivors = [said for said in ends if said["aborted"]]
    assert survivors and all(said["aborted"] == 1 for said in survivors), done.output


def test_a_torch_state_goes_back_as_one_unit_when_a_worker_is_killed(job):
    done = job("torch_survivor.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    ends = done.said()
    assert ends and len({of["step"] for of in ends}) == 1, "G-5: one history"
    for of in ends:
        assert of["weight"] == of["scheduled"] == of["step"], of
        assert of["drawn_in_order"] and of["exact"], of
    assert any(of["calls"] > 1 for of in ends), "a survivor trained on in its process"
