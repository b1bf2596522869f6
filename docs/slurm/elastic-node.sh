#!/bin/sh
# A training job of three nodes that goes on after its time limit, and after a preemption: Slurm announces the end, the
# job is put back into the queue, and its next run resumes from the newest checkpoint. Give the program as arguments:
#
#   sbatch elastic-node.sh python train.py
#
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

# Both are on a file system that all nodes have. A job that is put back keeps its id, and counts its restarts.
job=${TRAINING_FOLDER:-$HOME/elastic-node}/$SLURM_JOB_ID
state=$job/run-${SLURM_RESTART_COUNT:-0}
head=$(hostname)
port=${TRAINING_PORT:-7070}
mkdir -p "$state"

elastic-node --role driver --bind "0.0.0.0:$port" --advertise "$head:$port" --state-dir "$state" \
    -n "$SLURM_NNODES" --checkpoint "$job/checkpoints" --checkpoint-every "${TRAINING_SAVE_EVERY:-60s}" -- "$@" &
driver=$!
srun elastic-node --role worker --slots "${TRAINING_SLOTS:-1}" --join "$head:$port" \
    --token-file "$state/token" &

# The driver ends the job in order, and the agents with it. Then Slurm ends this run by itself.
trap 'kill -TERM "$driver"; wait; scontrol requeue "$SLURM_JOB_ID"; sleep 60' TERM
wait "$driver"
result=$?
wait
exit "$result"
