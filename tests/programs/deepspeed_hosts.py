"""DeepSpeed's ZeRO-1 over several hosts, on gloo. Arguments: a folder for results and checkpoints, a folder with control files. A
rank whose control file `kill.RANK.RESTARTS` is there kills itself on the way; the next start goes on from the last checkpoint."""

import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch

results, control = sys.argv[1:3]
# Its kernel for ranks that share memory, which ZeRO does not use, would be compiled first, for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
STEPS, EVERY, KILL_AT = 20, 5, 12
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
inputs = torch.randn(64, 8)
targets = inputs.sum(dim=1, keepdim=True)
mine = slice(rank, None, size)
settings = {"train_micro_batch_size_per_gpu": 64 // size, "zero_optimization": {"stage": 1}, "gradient_clipping": 0.0}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
path, client = engine.load_checkpoint(results)
step, losses = (client["step"], client["losses"]) if path else (0, [])
began_at = step
while step < STEPS:
    loss = torch.nn.functional.mse_loss(engine(inputs[mine]), targets[mine])
    engine.backward(loss)
    engine.step()
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    losses.append(total.item())
    if step == KILL_AT and os.path.exists(os.path.join(control, f"kill.{rank}.{restarts}")):
        os.kill(os.getpid(), 9)
    step += 1
    if step % EVERY == 0:
        engine.save_checkpoint(results, client_state={"step": step, "losses": losses})

result = {"rank": rank, "restarts": restarts, "losses": losses, "began_at": began_at}
result["coordinator"] = os.environ["MASTER_ADDR"]
path = os.path.join(results, f"result.{rank}")
with open(path + ".draft", "w") as file:
    json.dump(result, file)
os.rename(path + ".draft", path)
torch.distributed.barrier()
# Threads of torch's own gloo may abort the process while the interpreter is finalized.
os._exit(0)
