#!/bin/bash
# sbatch examples/recipes/slurm.sh     (in the checkout)
#SBATCH --job-name=ringleader
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00

# The nodes of a cluster trust their network. Else set RINGLEADER_TLS_CA, _CERT and _KEY.
export RINGLEADER_PLAINTEXT=1
# If nodes have firewalls, one port per task of a node: export RINGLEADER_PORTS=29600-29603
srun python examples/recipes/train.py
