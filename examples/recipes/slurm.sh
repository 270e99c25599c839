#!/bin/bash
#SBATCH --requeue
#SBATCH --time=4:00:00
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append

export HOLDFAST_STORE=/scratch/$USER/holdfast
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
srun holdfast run --name sim-$job --resume --every 30m --on TERM=checkpoint-stop -- ./sim input.dat
status=$?
if [ $status -eq 75 ]; then scontrol requeue $job; fi
exit $status
