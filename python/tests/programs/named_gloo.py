"""Scripts that ask for gloo, as frameworks do on machines without a GPU, and never name this package: an argument says
which. `ELASTIC_BACKEND_FOR=gloo` gives them ours. Prints the losses of the last steps."""

import os
import sys

import torch
import torch.distributed as dist


def data(rank, batches=8):
    random = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(4, 8, generator=random) for _ in range(batches)]


def plain():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in data(dist.get_rank()):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for x in data(accelerator.process_index):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    return accelerator.gather(loss.detach().reshape(1)).sum().item()


def trainer():
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}

    random = torch.Generator().manual_seed(7)
    rows = [{"x": x, "labels": x.sum()} for x in torch.randn(64, 8, generator=random)]
    arguments = TrainingArguments(
        output_dir=os.environ["CONTROL"],
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    return Trainer(model=Model(), args=arguments, train_dataset=rows).train().training_loss


torch.manual_seed(0)
loss = globals()[sys.argv[1]]()
assert dist.get_backend() == "gloo"
kind = type(dist.group.WORLD).__name__
print(kind, loss, flush=True)
dist.destroy_process_group()
if kind == "ProcessGroup":
    # Threads of torch's own gloo may abort the process while the interpreter is finalized ("terminate called without
    # an active exception", seen with stock torch 2.15 on busy machines). The compared values have been printed.
    os._exit(0)
