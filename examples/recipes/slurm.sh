#!/bin/bash
# sbatch examples/recipes/slurm.sh     (in the checkout)
#SBATCH --job-name=ringleader
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
set -euo pipefail

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# The nodes of a cluster trust their network. Else set RINGLEADER_TLS_CA, _CERT and _KEY.
export RINGLEADER_PLAINTEXT=1
# One port per task of a node, if the nodes have firewalls: export RINGLEADER_PORTS=29600-29603
srun bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  exec python examples/recipes/train.py'
