#!/usr/bin/env bash
# Shows on a machine with GPUs what the stand-in cannot: that digits and a larger model train over NCCL, what
# all-reduce, broadcast and commit cost beside torch.distributed's nccl, and that a survivor of two ranks on one GPU
# trains on.
#
# IT HAS NOT BEEN RUN YET on a machine with a GPU: expect to mend it. What it does was tried with the stand-in:
#
#   cargo build -p elastic-gpu-stand-in
#   library=$PWD/target/debug/libelastic_gpu_stand_in.so
#   ELASTIC_CUDA_LIBRARY=$library ELASTIC_NCCL_LIBRARY=$library BYTES_MAX=1048576 PARAMETERS=100000 bench/gpu.sh
#
# Needs: a CUDA driver; NCCL (any nvidia-nccl wheel, or the system's); cargo; python3, for the comparison with torch.
# Usage: [BYTES_MAX=N] [PARAMETERS=N] [PROFILE=release|debug] bench/gpu.sh [RESULTS_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-target/gpu-results}
mkdir -p "$results"
port=29700
# The largest message and state, in bytes, and the parameters of the larger model.
bytes_max=${BYTES_MAX:-$((1 << 30))}
parameters=${PARAMETERS:-67108864}
profile=${PROFILE:-release}
# Nothing of this outlives the script.
trap 'jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true' EXIT

say() { printf '\n== %s\n' "$*" >&2; }

say "building"
flags=()
if [ "$profile" = release ]; then flags+=(--release); fi
cargo build "${flags[@]}" --bins --examples
cargo build "${flags[@]}" -p elastic-gpu --example measure
node=target/$profile/elastic-node
examples=target/$profile/examples
digits=$examples/digits
measure=$examples/measure

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

say "a larger model over NCCL: $parameters parameters"
"$node" run -n "$world" --backend nccl -- "$examples/large" "$parameters" 2>&1 | tee "$results/large.log"

say "state on the GPU: what its commit costs the step"
mkdir -p "$results/device"
rm -f "$results"/device/*.jsonl
"$node" run -n "$world" --backend nccl -- "$examples/device_trainer" --control "$results" --log "$results/device" \
    --bytes "$((bytes_max / 4))" --step-ms 0 --steps 20 2>&1 | tee "$results/device.log"
python3 - "$results/device" <<'PYTHON' | tee "$results/commit.txt"
import json, pathlib, sys

for file in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    last = rows[-1]
    commits = max(last["commits"], 1)
    step_us = sorted(row["step_us"] for row in rows)[len(rows) // 2]
    print(f"rank {last['rank']}: step {step_us} us; commit: waited {last['waited_us'] / commits:.1f} us, "
          f"copied beside the step {last['copied_us'] / commits:.1f} us")
PYTHON

say "elastic: all-reduce, broadcast, commit"
: >"$results/measure.jsonl"
pids=()
for ((rank = 1; rank < world; rank++)); do
    "$measure" "$rank" "$world" "$port" "$bytes_max" &
    pids+=($!)
done
"$measure" 0 "$world" "$port" "$bytes_max" | tee -a "$results/measure.jsonl"
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
while size <= int(os.environ["BYTES_MAX"]):
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
    BYTES_MAX=$bytes_max python3 -m torch.distributed.run --nproc-per-node "$world" "$results/torch_measure.py" |
        tee -a "$results/measure.jsonl" || say "torch could not run $world ranks here"
else
    say "torch is not installed: no comparison"
fi
python3 - "$results/measure.jsonl" <<'PYTHON' | tee "$results/comparison.txt"
import json, sys

rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
torch = {row["bytes"]: row for row in rows if row["library"] == "torch"}
print(f"{'bytes':>11} {'all-reduce us':>14} {'/ torch':>8} {'broadcast us':>13} {'/ torch':>8} {'commit us':>10} {'copy us':>10}")
for row in (row for row in rows if row["library"] == "elastic"):
    other = torch.get(row["bytes"])
    ratio = lambda name: f"{row[name] / other[name]:.2f}" if other else "-"
    print(f"{row['bytes']:>11} {row['all_reduce_us']:>14} {ratio('all_reduce_us'):>8} {row['broadcast_us']:>13} "
          f"{ratio('broadcast_us'):>8} {row['commit_call_us']:>10} {row['commit_copy_us']:>10}")
PYTHON

say "two ranks on one GPU, one of them killed: the survivor trains on"
state=$(mktemp -d)
CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 "$node" run -n 2 --min-np 1 --backend nccl \
    --state-dir "$state" -- "$digits" --epochs 40 --step-ms 20 >"$results/killed.log" 2>&1 &
job=$!
victim=
for _ in $(seq 100); do
    victim=$(python3 - "$state" "$node" <<'PYTHON' 2>/dev/null || true
import json, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
address = (folder / "address").read_text().strip()
out = subprocess.run([sys.argv[2], "status", "--driver", address, "--state-dir", sys.argv[1], "--json"],
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
wait "$job" || { say "the survivor did not train on"; tail "$results/killed.log"; exit 1; }
tail -n 1 "$results/killed.log"
grep '"kind":"reset' "$state/events.jsonl" | tee "$results/resets.jsonl" || true
rm -rf "$state"

say "results are in $results"
