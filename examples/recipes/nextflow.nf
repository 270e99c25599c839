// A process that goes on where it was: `nextflow run nextflow.nf --folder /data/sim`.
params.folder = "$launchDir/sim"

process sim {
    // Ended with an image: the same command goes on from there. Anything else is a failure.
    errorStrategy { task.exitStatus == 75 ? 'retry' : 'terminate' }
    maxRetries 20

    output:
    path 'result.txt'

    script:
    // Each try has a folder of its own in Nextflow: the job's is another one, as a restart needs its files.
    """
    results=\$PWD
    mkdir -p '${params.folder}' && cd '${params.folder}'
    holdfast run --name sim --resume --every 10m --on TERM=checkpoint-stop -- ./sim input.dat >> sim.out
    mv sim.out "\$results/result.txt"
    """
}

workflow {
    sim()
}
