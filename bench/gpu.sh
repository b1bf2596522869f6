#!/usr/bin/env bash
# Shows on a machine with GPUs what the stand-in cannot: that digits and a larger model train over NCCL, what
# all-reduce, broadcast and commit cost beside torch.distributed's nccl, and that a survivor of two ranks on one GPU
# trains on.
#
# IT HAS NOT BEEN RUN YET on a machine with a GPU: expect to mend it. Without a GPU only `doctor` goes through.
#
# Needs: a CUDA driver; NCCL (any nvidia-nccl wheel, or the system's); cargo. For the comparison: python3 with torch.
# Usage: bench/gpu.sh [RESULTS_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-target/gpu-results}
mkdir -p "$results"
port=29700

say() { printf '\n== %s\n' "$*" >&2; }

say "building"
cargo build --release --examples
cargo build --release -p elastic-node
cargo build --release -p elastic-gpu --example measure
node=target/release/elastic-node
digits=target/release/examples/digits
large=target/release/examples/large
measure=target/release/examples/measure

say "doctor: what is here"
"$node" doctor --backend nccl --json | tee "$results/doctor.json"
gpus=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["gpus"]))' "$results/doctor.json")
world=$gpus
if [ "$world" -lt 2 ]; then
    # Two ranks on one GPU, from NCCL 2.30.3 on.
    export NCCL_MULTI_RANK_GPU_ENABLE=1
    world=2
fi

say "digits over NCCL, $world workers"
"$node" run -n "$world" --backend nccl -- "$digits" 2>&1 | tee "$results/digits.log"

say "a larger model over NCCL: 64 Mi parameters"
"$node" run -n "$world" --backend nccl -- "$large" 67108864 2>&1 | tee "$results/large.log"

say "elastic: all-reduce, broadcast, commit"
: >"$results/measure.jsonl"
pids=()
for ((rank = 1; rank < world; rank++)); do
    "$measure" "$rank" "$world" "$port" &
    pids+=($!)
done
"$measure" 0 "$world" "$port" | tee -a "$results/measure.jsonl"
for pid in "${pids[@]}"; do wait "$pid"; done

if python3 -c 'import torch' 2>/dev/null; then
    say "torch.distributed: all-reduce, broadcast"
    cat >"$results/torch_measure.py" <<'PYTHON'
import json, os, time
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())


def timed(rounds, call):
    for _ in range(min(rounds, 5)):
        call()
        torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] * 1e6


size = 1 << 10
while size <= 1 << 30:
    rounds = max(5, min(500, (256 << 20) // size))
    data = torch.ones(size // 4, device="cuda")
    host = torch.empty(size // 4, pin_memory=True)
    row = {
        "library": "torch",
        "world": world,
        "bytes": size,
        "all_reduce_us": round(timed(rounds, lambda: dist.all_reduce(data)), 1),
        "broadcast_us": round(timed(rounds, lambda: dist.broadcast(data, 0)), 1),
        "copy_to_host_us": round(timed(min(rounds, 20), lambda: host.copy_(data, non_blocking=True)), 1),
    }
    if rank == 0:
        print(json.dumps(row), flush=True)
    size *= 4
dist.destroy_process_group()
PYTHON
    python3 -m torch.distributed.run --nproc-per-node "$world" "$results/torch_measure.py" |
        tee -a "$results/measure.jsonl" || say "torch could not run $world ranks here"
else
    say "torch is not installed: no comparison"
fi

say "two ranks on one GPU, one of them killed: the survivor trains on"
state=$(mktemp -d)
CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 "$node" run -n 2 --min-np 1 --backend nccl \
    --state-dir "$state" --max-restarts 0 -- "$digits" --epochs 20 2>&1 | tee "$results/killed.log" &
job=$!
victim=
for _ in $(seq 100); do
    victim=$(python3 - "$state" <<'PYTHON' || true
import json, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
address = (folder / "address").read_text().strip()
out = subprocess.run(["target/release/elastic-node", "status", "--driver", address, "--state-dir", sys.argv[1], "--json"],
                     capture_output=True, text=True).stdout
status = json.loads(out)
ready = [w["pid"] for w in status["workers"] if w["step"] > 0 and w["pid"]]
print(ready[1] if status["world_size"] == 2 and len(ready) == 2 else "")
PYTHON
)
    [ -n "$victim" ] && break
    sleep 0.2
done
[ -n "$victim" ] || { say "the job did not get to train"; exit 1; }
kill -9 "$victim"
wait "$job"
grep '"kind":"reset' "$state/events.jsonl" | tee "$results/resets.jsonl" || true

say "results are in $results"
