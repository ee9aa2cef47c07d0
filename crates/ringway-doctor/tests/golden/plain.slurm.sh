#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# RoCE for a job under Slurm. Never run on a cluster with RDMA.
#
# Once, on every host: locked memory without limit for slurmd and what it starts.
#   /etc/systemd/system/slurmd.service.d/memlock.conf:   [Service]
#                                                        LimitMEMLOCK=infinity
#   slurm.conf:                                          PropagateResourceLimitsExcept=MEMLOCK   (unverified)
#   systemctl daemon-reload && systemctl restart slurmd
set -euo pipefail

# The limit counts where ranks run, not where the job was submitted.
if ! srun --ntasks-per-node=1 bash -c '[ "$(ulimit -l)" = unlimited ] || { echo "$(hostname): locked memory is limited to $(ulimit -l) kB" >&2; exit 1; }'; then
    echo "locked memory has to be unlimited for RDMA: see the head of this script" >&2
    exit 1
fi

# DSCP 26 x 4 + 2 (ECN-capable): without it data is unmarked, and lossy.
export NCCL_IB_TC=106
export NCCL_IB_FIFO_TC=106
export NCCL_GIN_IB_TC=106
export UCX_IB_TRAFFIC_CLASS=106
export NCCL_IB_HCA=mlx5_0:1
export RINGWAY_INTERFACES=eth1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# A task for each rank; Ringway finds rank and master in Slurm's variables.
srun --kill-on-bad-exit=1 --cpu-bind=cores python train.py --note 'it'\''s: a "test"'

# With torchrun, in place of the line above:
#   srun --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 \
#       --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" train.py --note 'it'\''s: a "test"'
# With Open MPI:
#   mpirun -np 32 --map-by ppr:8:node --bind-to core \
#       -x NCCL_IB_TC -x NCCL_IB_FIFO_TC -x NCCL_GIN_IB_TC -x UCX_IB_TRAFFIC_CLASS -x NCCL_IB_HCA -x RINGWAY_INTERFACES \
#       -x RINGWAY_MASTER="$head:29400" python train.py --note 'it'\''s: a "test"'
