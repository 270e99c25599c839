#!/bin/bash
#PBS -N sim
#PBS -l select=1:ncpus=1:mem=4gb
#PBS -l walltime=04:00:00
#PBS -j oe

# Handed in by `qsub pbs.sh`, or `qsub -J 0-9 pbs.sh` as an array; ten minutes before the end of its time it hands
# itself in once more, and goes on there. JOB and INDEX are what that hands down.
cd "$PBS_O_WORKDIR" || exit 1
export HOLDFAST_STORE=${HOLDFAST_STORE:-/scratch/$USER/holdfast}
index=${INDEX:-$PBS_ARRAY_INDEX}
number=${PBS_JOBID%%.*}
job=${JOB:-sim-${number%%[*}${index:+_$index}}

timeout --preserve-status --signal=TERM "${LIMIT:-3h50m}" \
    holdfast run --name "$job" --resume --every 30m --on TERM=checkpoint-stop -- ./sim input.dat $index
status=$?
if [ $status -eq 75 ]; then qsub -v "JOB=$job,INDEX=$index" pbs.sh; fi
exit $status
