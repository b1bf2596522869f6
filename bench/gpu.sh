#!/usr/bin/env bash
# Shows on a machine with GPUs what the stand-in cannot: that digits and a larger model train over NCCL; what
# all-reduce, broadcast and commit cost beside torch.distributed's nccl; that a survivor of two ranks on one GPU trains
# on; and, where torch and the package elastic_node are, that torch's CUDA tensors go by NCCL.
#
# Each part has a time limit and is run whatever came of the others; the script fails if one of them failed. To try it
# without a GPU, with the stand-in:
#
#   cargo build -p elastic-gpu-stand-in
#   library=$PWD/target/debug/libelastic_gpu_stand_in.so
#   ELASTIC_CUDA_LIBRARY=$library ELASTIC_NCCL_LIBRARY=$library BYTES_MAX=1048576 PARAMETERS=100000 bench/gpu.sh
#
# Needs: a CUDA driver; NCCL (any nvidia-nccl wheel, or the system's; two ranks on one GPU need 2.30.3); cargo, or what it
# has built in target/PROFILE; python3.
# Usage: [BYTES_MAX=N] [PARAMETERS=N] [PROFILE=release|debug] [PARTS="digits killed …"] [KILLS=N] [MILLIONS="0.4 10"] bench/gpu.sh [RESULTS_FOLDER]
set -uo pipefail
cd "$(dirname "$0")/.."
results=${1:-target/gpu-results}
mkdir -p "$results"
port=29700
# The largest message and state, in bytes, and the parameters of the larger model.
export BYTES_MAX=${BYTES_MAX:-$((1 << 30))}
parameters=${PARAMETERS:-67108864}
profile=${PROFILE:-release}
# Deadline of one part.
limit_s=${LIMIT_S:-240}
node=$PWD/target/$profile/elastic-node
examples=target/$profile/examples
failed=()
# Nothing of this outlives the script.
trap 'jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true' EXIT

say() { printf '\n== %s\n' "$*" >&2; }
has_python_package() { python3 -c "import $1" 2>/dev/null; }

# Whether these Python packages are there; says which one is not, and that a part is not run.
has_all() {
    local package
    for package in "$@"; do
        has_python_package "$package" || { say "$package is not installed: not run"; return 1; }
    done
}

build() {
    if ! command -v cargo >/dev/null; then
        say "cargo is not here: what is in target/$profile is used"
        return
    fi
    local flags=()
    if [ "$profile" = release ]; then flags+=(--release); fi
    cargo build "${flags[@]}" --bins --examples && cargo build "${flags[@]}" -p elastic-gpu --example measure
}

doctor() {
    "$node" doctor --backend nccl --json >"$results/doctor.json"
    cat "$results/doctor.json"
}

digits() { "$node" run -n "$world" --backend nccl -- "$examples/digits"; }

large() { "$node" run -n "$world" --backend nccl -- "$examples/large" "$parameters"; }

# State on the GPU: what its commit costs the step.
commit() {
    mkdir -p "$results/device"
    rm -f "$results"/device/*.jsonl
    "$node" run -n "$world" --backend nccl -- "$examples/device_trainer" --control "$results" --log "$results/device" \
        --bytes "$((BYTES_MAX / 4))" --step-ms 0 --steps 20 || return
    python3 - "$results/device" <<'PYTHON'
import json, pathlib, sys

for file in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    last = rows[-1]
    commits = max(last["commits"], 1)
    step_us = sorted(row["step_us"] for row in rows)[len(rows) // 2]
    print(f"rank {last['rank']}: step {step_us} us; commit: waited {last['waited_us'] / commits:.1f} us, "
          f"copied beside the step {last['copied_us'] / commits:.1f} us")
PYTHON
}

# All-reduce, broadcast and commit, beside torch.distributed where torch is.
measure() {
    local pids=() rank status=0
    for ((rank = 1; rank < world; rank++)); do
        "$examples/measure" "$rank" "$world" "$port" "$BYTES_MAX" &
        pids+=($!)
    done
    "$examples/measure" 0 "$world" "$port" "$BYTES_MAX" >"$results/measure.jsonl" || status=$?
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    [ "$status" = 0 ] || return "$status"
    if has_python_package torch; then
        timeout "$limit_s" python3 -m torch.distributed.run --nproc-per-node "$world" bench/peers/nccl.py >>"$results/measure.jsonl" ||
            say "torch could not run $world ranks here"
    else
        say "torch is not installed: no comparison"
    fi
    python3 - "$results/measure.jsonl" <<'PYTHON'
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
}

# Two ranks on one GPU, of which one is killed ten times; the same with communicators that were formed ahead.
killed() { python3 bench/gpu_kills.py "$node" "$examples/digits" "${KILLS:-10}"; }

killed_with_spares() { ELASTIC_NCCL_SPARES=2 killed; }

# The tests of torch's CUDA tensors.
torch_tests() {
    has_all torch pytest elastic_node || return 0
    ELASTIC_NODE_BINARY=$node python3 -m pytest -q --tb=short -rs python/tests/test_on_gpu.py
}

# The cost of a commit of torch's CUDA tensors.
torch_commit() {
    has_all torch elastic_node || return 0
    "$node" run -n 1 -- python3 bench/gpu_commit.py "$BYTES_MAX"
}

# Steps of DistributedDataParallel over NCCL, by the backend "elastic" and by torch's own.
ddp_step() {
    has_all torch elastic_node || return 0
    local millions
    for millions in ${MILLIONS:-0.4 10 100}; do
        "$node" run -n "$world" --backend nccl -- python3 bench/peers/ddp_step.py --device cuda --parameters "$millions" \
            --results "$results/ddp_step_$millions.json" || return
        python3 - "$results/ddp_step_$millions.json" <<'PYTHON'
import json, statistics, sys

found = json.load(open(sys.argv[1]))
medians = {name: statistics.median(of_name) for name, of_name in found["ms"].items()}
print(found["parameters"], "parameters, ms a step:", {name: round(of_name, 3) for name, of_name in medians.items()})
PYTHON
    done
}

say "build"
build || exit
doctor || exit
gpus=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["gpus"]))' "$results/doctor.json")
world=$gpus
if [ "$world" -lt 2 ]; then
    # Two ranks on one GPU, from NCCL 2.30.3 on.
    export NCCL_MULTI_RANK_GPU_ENABLE=1
    world=2
fi
export world port results node examples parameters limit_s
export -f digits large commit measure killed killed_with_spares torch_tests torch_commit ddp_step say has_python_package has_all
for part in ${PARTS:-digits large commit measure killed killed_with_spares torch_tests torch_commit ddp_step}; do
    say "$part"
    SECONDS=0
    timeout "$limit_s" bash -uo pipefail -c "$part" 2>&1 | tee "$results/$part.log" || failed+=("$part")
    say "$part took $SECONDS s"
done
say "results are in $results"
if [ ${#failed[@]} -gt 0 ]; then
    say "failed: ${failed[*]}"
    exit 1
fi
