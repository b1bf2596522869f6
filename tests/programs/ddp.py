"""An unmodified script of stock torch: DDP over gloo, env:// and the store that is there. Argument: a control
folder; it prints the loss of each rank's last step."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(64, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(50):
    mine = slice(rank, None, world_size)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    if step == 5 and os.path.exists(os.path.join(sys.argv[1], f"kill.{rank}.{restarts}")):
        os.kill(os.getpid(), 9)
dist.barrier()
print(f"trained {world_size} restarts {restarts} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
# Threads of torch's own gloo may abort the process while the interpreter is finalized ("terminate called without an active
# exception", seen with stock torch 2.15 on busy machines). The result has been printed.
os._exit(0)
