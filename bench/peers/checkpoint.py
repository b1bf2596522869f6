"""The training program of `bench checkpoint`: steps over a state of many arrays, saved by one of several libraries, with a record
of every step and save; or, with `--resume`, the time until all ranks have the state of the newest checkpoint.

A step is what a training on an accelerator does on its host: some operations that Python starts, a wait for their results, and a
sum over the ranks. The first step of each cycle begins with a commit (ours, in every cycle) or a save (the others, in every
`--every` cycles). `bench/src/checkpoint` reads the records."""

import argparse
import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--library", choices=["ours", "dcp-thread", "dcp-process", "torch-checkpointing"], required=True)
arguments.add_argument("--records", type=Path, required=True)
arguments.add_argument("--folder", type=Path, required=True)
arguments.add_argument("--state-bytes", type=int, required=True)
arguments.add_argument("--step-ms", type=float, required=True)
arguments.add_argument("--steps", type=int, required=True, help="steps of a cycle")
arguments.add_argument("--cycles", type=int, required=True)
arguments.add_argument("--every", type=int, required=True, help="cycles from one save to the next")
arguments.add_argument("--resume", action="store_true")
options = arguments.parse_args()

ARRAYS = 64
torch.set_num_threads(1)


class Model(torch.nn.Module):
    """Arrays of float32, of which each step changes one."""

    def __init__(self):
        super().__init__()
        length = options.state_bytes // 4 // ARRAYS
        arrays = (torch.rand(length) if not options.resume else torch.zeros(length) for _ in range(ARRAYS))
        self.layers = torch.nn.ParameterList(torch.nn.Parameter(array, requires_grad=False) for array in arrays)


class Training:
    """Steps with the time of each, by cycle."""

    def __init__(self, model, all_reduce, lock):
        self.model, self.all_reduce, self.lock = model, all_reduce, lock
        self.small, self.gradient = torch.rand(64, 64), torch.zeros(1 << 18)
        self.steps = []
        self.number = 0

    def cycle(self, cycle, begin, busy=0):
        """A cycle of steps, the first of which begins with `begin()`. Returns whether any rank is `busy`."""
        for number in range(options.steps):
            began = time.time()
            if number == 0:
                begin()
            due = time.time() + options.step_ms / 1000
            out = self.small
            for _ in range(100):
                out = torch.tanh(self.small @ out)
            with self.lock():
                self.model.layers[self.number % ARRAYS].add_(1e-3)
            self.number += 1
            time.sleep(max(due - time.time(), 0))
            self.gradient.fill_(busy)
            self.all_reduce(self.gradient)
            self.steps.append((cycle, number, began, time.time()))
        return self.gradient[0].item() > 0


def write(name, content):
    (options.records / name).write_text(json.dumps(content))


class Resume:
    """The times of a resume, from here on."""

    def __init__(self):
        self.times, self.cpu_began = {"ready": time.time()}, time.process_time()

    def built(self):
        self.times["built"] = time.time()

    def record(self, rank, cycle):
        used = time.process_time() - self.cpu_began
        write(f"resumed.{rank}", {**self.times, "resumed": time.time(), "cpu_s": used, "cycle": cycle})


def ours():
    import elastic_node.torch as en

    resume = Resume()
    en.init()
    state = en.elastic.TorchState(model=Model(), cycle=0)
    resume.built()

    @en.elastic.run
    def train(state):
        if options.resume:
            resume.record(en.rank(), state.cycle)
            return
        training = Training(state.model, en.allreduce_, threading.Lock)
        while state.cycle < options.cycles:
            cycle, state.cycle = state.cycle, state.cycle + 1
            training.cycle(cycle, state.commit)
        if en.rank() == 0:
            # The commit of cycle N has the number N + 1.
            write("trained", {"steps": training.steps, "saves": []})

    train(state)


class Dcp:
    """torch.distributed.checkpoint, with a thread or a process that writes."""

    def __init__(self, kind):
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self.kind = AsyncCheckpointerType(kind)
        dist.init_process_group("gloo")
        # The thread's collectives must not meet the training's.
        self.group = dist.new_group(backend="gloo")
        self.lock = threading.Lock

    def save(self, state, folder):
        return dcp.async_save(
            state, checkpoint_id=folder, process_group=self.group, async_checkpointer_type=self.kind
        )

    def load(self, state, folder):
        dcp.load(state, checkpoint_id=folder)
        return state

    def close(self):
        pass


class TorchCheckpointing:
    """Meta's torch_checkpointing. Rank 0 saves the replicated state alone, as a world of one; each rank reads it so."""

    def __init__(self):
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.staging import CheckpointStagerConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        staging = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
        save = AsyncCheckpointSaverConfig(staging_config=staging)
        # By default it writes whatever length through O_DIRECT, which ext4 refuses. It never syncs what it wrote.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        config = CheckpointManager.Config(save=save, storage_config=storage)
        has_part = os.environ["RANK"] == "0" or options.resume
        self.manager = config.build() if has_part else None
        dist.init_process_group("gloo")
        self.lock = self.manager.lock if self.manager else threading.Lock

    def save(self, state, folder):
        return self.manager.save(str(folder), state) if self.manager else None

    def load(self, state, folder):
        return self.manager.load(str(folder), into=state)

    def close(self):
        if self.manager:
            self.manager.close()


def peer():
    resume = Resume()
    if options.library == "torch-checkpointing":
        library = TorchCheckpointing()
    else:
        library = Dcp(options.library.removeprefix("dcp-"))
    model = Model()
    # The arrays of the model, not copies.
    state = {"model": model.state_dict(), "cycle": 0}
    resume.built()
    if options.resume:
        newest = max(options.folder.iterdir(), key=lambda folder: int(folder.name))
        cycle = library.load(state, newest)["cycle"]
        dist.barrier()
        resume.record(dist.get_rank(), cycle)
    else:
        train(library, model, state)
        dist.barrier()
    library.close()
    dist.destroy_process_group()


def train(library, model, state):
    training = Training(model, dist.all_reduce, library.lock)
    saves, save, busy = [], None, False
    for cycle in range(options.cycles):

        def begin(is_due=cycle > 0 and cycle % options.every == 0 and not busy):
            nonlocal save
            if is_due:
                times = {"began": time.time(), "durable": None}
                state["cycle"] = cycle
                save = library.save(state, options.folder / str(cycle))
                if save is not None:
                    saves.append(times)
                    save.add_done_callback(lambda _: times.update(durable=time.time()))

        busy = training.cycle(cycle, begin, int(save is not None and not save.done()))
    if save is not None:
        save.result()
    if dist.get_rank() == 0:
        write("trained", {"steps": training.steps, "saves": [[it["began"], it["durable"]] for it in saves]})


# The processes that write import this file, too.
if __name__ == "__main__":
    ours() if options.library == "ours" else peer()
