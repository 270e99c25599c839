#!/bin/bash
#SBATCH --requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=4:00:00
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append

export HOLDFAST_STORE=/scratch/$USER/holdfast
name=sim-$SLURM_JOB_ID
if [ -e "$HOLDFAST_STORE/.gangs/$name/gang-000001" ]; then
    srun holdfast restart "$name" --gang auto
else
    srun holdfast run --name "$name" --gang auto --every 30m --on TERM=checkpoint-stop -- ./sim input.dat
fi
status=$?
if [ $status -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
