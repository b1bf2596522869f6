"""One training of a real framework, for `matrix.py`: `matrix_job.py FRAMEWORK WAY`, on each rank. By restart ("restart") the
framework saves and resumes as its documentation says, and the script knows nothing of this package; "in-process" uses
`elastic_node.integrations`.

Rank 0 appends a line of JSON to `steps` in the folder MATRIX_FOLDER for each step: its number, rank 0's loss, the
time, the process. If the file `kill` is there, rank 1 removes it at step KILL_AT, writes the time to `killed`, and
dies by kill -9.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict

import torch

FOLDER = Path(os.environ.get("MATRIX_FOLDER", "."))
STEPS, KILL_AT, STEPS_OF_EPOCH, BATCH = 40, 23, 5, 4


def rows(ranks: int) -> Any:
    """Samples for epochs of five steps, on so many ranks."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS_OF_EPOCH * BATCH * ranks, 8, generator=random)
    return [{"x": x, "labels": x.sum()} for x in inputs]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}


def note(step: int, loss: float) -> None:
    if int(os.environ["RANK"]) == 0:
        with open(FOLDER / "steps", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "time": time.time(), "process": os.getpid()}) + "\n")


def die(step: int) -> None:
    order = FOLDER / "kill"
    if step == KILL_AT and int(os.environ["RANK"]) == 1 and order.exists():
        order.unlink()
        (FOLDER / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


def last_checkpoint() -> Any:
    """The latest folder of a checkpoint that is whole."""
    whole = [path.parent for path in FOLDER.glob("checkpoint-*/whole")]
    return max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)


def accelerate_by_restart() -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = rows(accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH))
    step = 0
    if last_checkpoint():
        accelerator.load_state(str(last_checkpoint()))
        step = int(last_checkpoint().name.partition("-")[2])
    while step < STEPS:
        for batch in loader:
            loss = model(**batch)["loss"]
            optimizer.zero_grad()
            die(step)
            accelerator.backward(loss)
            optimizer.step()
            note(step, loss.item())
            step += 1
        folder = FOLDER / f"checkpoint-{step}"
        accelerator.save_state(str(folder))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (folder / "whole").touch()
        accelerator.wait_for_everyone()
    accelerator.end_training()


def accelerate_in_process() -> None:
    from torch.utils.data import DataLoader

    import elastic_node.torch as en
    from elastic_node.integrations.accelerate import ElasticAccelerator

    en.init()
    model, data = Model(), rows(ranks())
    sampler = en.ElasticDistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = en.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)

    @en.elastic.run
    def train(state: Any) -> None:
        accelerator = ElasticAccelerator(cpu=True)
        loader = DataLoader(data, BATCH, sampler=sampler)
        model, optimizer, loader = accelerator.prepare(state.model, state.optimizer, loader)
        while state.step < STEPS:
            for number, batch in enumerate(loader):
                loss = model(**batch)["loss"]
                optimizer.zero_grad()
                die(state.step)
                accelerator.backward(loss)
                optimizer.step()
                note(state.step, loss.item())
                state.step += 1
                sampler.record_batch(number, BATCH)
                state.commit()
            sampler.set_epoch(sampler.epoch + 1)

    train(state)


def trainer_parts() -> Any:
    from transformers import TrainerCallback, TrainingArguments

    class Watches(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            die(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "loss" in logs:
                note(state.global_step - 1, float(logs["loss"]))

    def arguments(**more: Any) -> Any:
        return TrainingArguments(
            str(FOLDER), use_cpu=True, ddp_backend="gloo", max_steps=STEPS, per_device_train_batch_size=BATCH,
            learning_rate=0.01, report_to=[], disable_tqdm=True, logging_steps=1, **more,
        )

    return Watches, arguments


def transformers_by_restart() -> None:
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint

    watches, arguments = trainer_parts()
    settings = arguments(save_steps=STEPS_OF_EPOCH)
    trainer = Trainer(model=Model(), args=settings, train_dataset=rows(ranks()), callbacks=[watches()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(FOLDER)))


def transformers_in_process() -> None:
    import elastic_node.torch as en
    from elastic_node.integrations.transformers import ElasticTrainer, TransformersState

    watches, arguments = trainer_parts()
    en.init()
    data = rows(ranks())
    state = TransformersState(en.ElasticDistributedSampler(data))

    @en.elastic.run
    def train(state: Any) -> None:
        en.init_process_group()
        settings = arguments(save_strategy="no")
        ElasticTrainer(state, model=Model(), args=settings, train_dataset=data, callbacks=[watches()]).train()

    train(state)


def lightning_parts() -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            die(self.global_step)
            return self.model(**batch)["loss"]  # type: ignore[no-any-return]

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            note(self.global_step - 1, outputs["loss"].item())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Module(), {**quiet, "max_epochs": STEPS // STEPS_OF_EPOCH, "devices": int(os.environ["LOCAL_WORLD_SIZE"])}


def lightning_by_restart() -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    module, settings = lightning_parts()
    saves = ModelCheckpoint(str(FOLDER), save_last=True, every_n_epochs=1)
    trainer = Trainer(**settings, strategy="ddp", callbacks=[saves])
    last = FOLDER / "last.ckpt"
    trainer.fit(module, DataLoader(rows(ranks()), BATCH, shuffle=True), ckpt_path=str(last) if last.exists() else None)


def lightning_in_process() -> None:
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader

    import elastic_node.torch as en
    from elastic_node.integrations.lightning import CommitStateCallback, ElasticStrategy, LightningState

    en.init()
    data = rows(ranks())
    state = LightningState(en.ElasticDistributedSampler(data))

    @en.elastic.run
    def train(state: Any) -> None:
        module, settings = lightning_parts()
        plugins = {"strategy": ElasticStrategy(state), "callbacks": [CommitStateCallback(state)]}
        trainer = Trainer(**settings, **plugins, enable_checkpointing=False)
        trainer.fit(module, DataLoader(data, BATCH, sampler=state.sampler), ckpt_path=state.ckpt_path)

    train(state)


def deepspeed_by_restart() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    # Its kernel for ranks that share memory, which ZeRO does not use, would be compiled first, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    rank, size = int(os.environ["RANK"]), ranks()
    model, data = Model(), rows(size)
    settings = {"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 1}}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    path, client = engine.load_checkpoint(str(FOLDER))
    step = client["step"] if path else 0
    while step < STEPS:
        for number in range(STEPS_OF_EPOCH):
            mine = data[(number * size + rank) * BATCH :][:BATCH]
            batch = {name: torch.stack([row[name] for row in mine]) for name in ("x", "labels")}
            loss = engine(**batch)["loss"]
            die(step)
            engine.backward(loss)
            engine.step()
            note(step, loss.item())
            step += 1
        engine.save_checkpoint(str(FOLDER), client_state={"step": step})


def jax_by_restart() -> None:
    import jax
    import numpy

    import elastic_node.integrations.jax  # noqa: F401: JAX asks it where the processes are.

    jax.distributed.initialize()
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    size, rank = jax.process_count(), jax.process_index()
    mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
    by_rank = NamedSharding(mesh, PartitionSpec("ranks"))
    data = [(row["x"].numpy(), row["labels"].numpy()) for row in rows(size)]
    weights: Any = {name: tensor.numpy() for name, tensor in Model().state_dict().items()}
    last, step = last_checkpoint(), 0
    if last:
        with numpy.load(last / "weights.npz") as saved:
            weights, step = {name: saved[name] for name in weights}, int(last.name.partition("-")[2])
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))

    def loss_of(weights: Any, x: Any, labels: Any) -> Any:
        inner = jax.numpy.tanh(x @ weights["layers.0.weight"].T + weights["layers.0.bias"])
        outer = inner @ weights["layers.2.weight"].T + weights["layers.2.bias"]
        return jax.numpy.square(outer[:, 0] - labels).mean()

    @jax.jit
    def train(weights: Any, x: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, labels)
        return jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients), loss

    while step < STEPS:
        for number in range(STEPS_OF_EPOCH):
            mine = data[(number * size + rank) * BATCH :][:BATCH]
            columns = [numpy.stack(column) for column in zip(*mine)]
            die(step)
            weights, loss = train(weights, *(jax.make_array_from_process_local_data(by_rank, it) for it in columns))
            note(step, float(loss))
            step += 1
        folder = FOLDER / f"checkpoint-{step}"
        if rank == 0:
            folder.mkdir(exist_ok=True)
            arrays = {name: numpy.asarray(weight.addressable_data(0)) for name, weight in weights.items()}
            numpy.savez(folder / "weights.npz", **arrays)
            (folder / "whole").touch()
        multihost_utils.sync_global_devices(folder.name)
    jax.distributed.shutdown()


if __name__ == "__main__":
    framework, way = sys.argv[1:]
    globals()[f"{framework}_{way.replace('restart', 'by_restart').replace('-', '_')}"]()
