"""torch's CUDA tensors by NCCL, on a real GPU: skipped where there is none. Several ranks share the first GPU, which needs NCCL
2.30.3 (`ELASTIC_NCCL_LIBRARY` names it, where torch's own is older; `LD_PRELOAD` has torch use that one, too)."""

import pytest
from conftest import check_torch_survivor

torch = pytest.importorskip("torch")

import elastic_node.torch as en  # noqa: E402
from elastic_node import _torch_tensors  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

FLAGS = ["--backend", "nccl", "--min-np", "1"]
ENVIRONMENT = {"DEVICE": "cuda", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_every_operation_of_a_backend_on_cuda_tensors(job):
    done = job("torch_operations.py", workers=3, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    assert done.output.count("well") == 3, done.output


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_t_14_an_unmodified_script_trains_as_on_nccl(job, kind):
    ends = {}
    for name in ("nccl", "elastic"):
        done = job(
            "torch_training.py", name, kind, workers=2, flags=FLAGS, environment=ENVIRONMENT, state_folder=name
        )
        assert done.code == 0, done.output
        (ends[name],) = [line[line.index("loss ") :] for line in done.output.splitlines() if "loss " in line]
    # Two ranks: the bits of the sum do not depend on the library that adds.
    assert ends["elastic"] == ends["nccl"]


def test_a_distributed_optimizer_averages_as_one_process_would(job):
    done = job("averaged_gradients.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    said = done.said()
    assert sorted(of["rank"] for of in said) == [0, 1]
    assert all(of["is_same_on_all"] for of in said)
    # Hooks run on autograd's thread of the GPU.
    assert all(count > 0 for of in said for count in of["launched_in_backward"]), said


def test_ddp_survives_the_death_of_a_rank_in_place(job, tmp_path):
    """The backward pass of the aborted step may end before the abort is known: then the commit raises, and nothing of it stays."""
    killed = tmp_path / "killed"
    killed.touch()
    undisturbed = job("ddp_survivor.py", workers=2, flags=FLAGS, environment=ENVIRONMENT, state_folder="undisturbed")
    assert undisturbed.code == 0, undisturbed.output
    due = undisturbed.said()[0]["losses"]
    killed.unlink()
    done = job("ddp_survivor.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    assert done.code == 0, done.output
    ends = done.said()
    assert ends and all(said["losses"] == due and said["step"] == 40 for said in ends), done.output
    assert any(said["calls"] > 1 for said in ends), "a survivor trained on in its process"


def test_a_torch_state_goes_back_as_one_unit_when_a_worker_is_killed(job):
    done = job("torch_survivor.py", workers=2, flags=FLAGS, environment=ENVIRONMENT)
    check_torch_survivor(done)


@pytest.mark.parametrize("way", ["beside the step", "one by one", "no room on the GPU"])
def test_a_state_on_the_gpu_comes_back(monkeypatch, way):
    """Its tensors are copied in each way. The next step changes them at once, while copies beside it go on."""
    if way == "one by one":
        monkeypatch.setattr(_torch_tensors, "PINNED_MAX_BYTES", 4096)
    if way == "no room on the GPU":
        room_for = _torch_tensors._room_for

        def on_the_host_alone(contents, **where):
            if "device" in where:
                raise torch.cuda.OutOfMemoryError("told to")
            return room_for(contents, **where)

        monkeypatch.setattr(_torch_tensors, "_room_for", on_the_host_alone)

    @en.elastic.run
    def train(state):
        def step():
            state.model(torch.randn(8, 512, device="cuda")).square().sum().backward()
            state.optimizer.step()

        for _ in range(3):
            step()
            state.commit()
            due = {name: value.clone() for name, value in state.model.state_dict().items()}
            others = state.half.clone(), state.columns.clone(), state.single.item()
            step()
            state.half += 1
            state.restore()
            assert all(torch.equal(value, due[name]) for name, value in state.model.state_dict().items())
            assert all(value.is_cuda for value in state.model.state_dict().values())
            assert torch.equal(state.half.cpu(), others[0].cpu()) and torch.equal(state.columns.cpu(), others[1].cpu())
            assert state.single.item() == others[2] and state.nothing.numel() == 0

    en.init()
    try:
        torch.manual_seed(3)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)], torch.nn.BatchNorm1d(512)).cuda()
        train(
            en.elastic.TorchState(
                model,
                torch.optim.Adam(model.parameters()),
                half=torch.randn(5, 3, device="cuda").bfloat16(),
                columns=torch.arange(6.0, device="cuda").reshape(2, 3).T,
                single=torch.tensor(2.5, device="cuda"),
                nothing=torch.empty(0, device="cuda"),
            )
        )
    finally:
        en.shutdown()
