//! The command line: the one definition that help, errors and shell completions come from. Here are the commands; their
//! options are in the files beside this one.

mod gang;
mod helpers;
mod images;
mod map_host;
mod on_failure;
mod on_restart;
mod plan;
mod restart;
mod run;
mod running;
mod streams;

use crate::completion::jobs;
use crate::names::{ImageName, parse_image};
use clap::{Parser, Subcommand};
use holdfast_tiers::stack::TierSpec;
use std::path::PathBuf;

pub use gang::GangArgs;
pub use helpers::{AgentArgs, CudaArgs, KeeperArgs, MeetArgs, PagesArgs, PrefetchArgs, ServeArgs};
pub use images::{ExportArgs, FetchArgs, ImportArgs, PruneArgs, RmArgs, SyncArgs, VerifyArgs};
pub use on_failure::{is_supervised, supervision};
pub use on_restart::OnRestart;
pub use plan::PlanArgs;
pub use restart::RestartArgs;
pub use run::{Resume, RunArgs, SetArgs};
pub use running::{CheckpointArgs, KillArgs, RollbackArgs, StopArgs};
pub use streams::{CatArgs, StreamsArgs};

/// Place of the options of all commands in a help: after the command's own.
const LAST: usize = 500;

/// Checkpoint running programs and restart them: unmodified, without root.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  holdfast run --name sim --every 10m -- ./sim input.dat
  holdfast checkpoint sim
  holdfast restart sim

Exit codes:
  64 wrong command line    65 damaged image            66 no such job or image
  69 refused               70 Holdfast itself failed   73 store cannot be written
  75 checkpointed, ended   77 not allowed              126, 127 program cannot be executed, found
`run` and `restart` return the program's own status."
)]
pub struct Cli {
    /// Print results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub quiet: bool,
    /// Print more: the processes, the cost of each image, the parts of its time
    #[arg(short, long, global = true, display_order = LAST + 1)]
    pub verbose: bool,
    /// Folder with the jobs [default: $HOLDFAST_STORE, else $XDG_STATE_HOME/holdfast, else ~/.local/state/holdfast]
    #[arg(long, global = true, value_name = "DIR", display_order = LAST + 2)]
    pub store: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program under Holdfast, so that it can be checkpointed
    #[command(after_help = "\
Examples:
  holdfast run -- python3 train.py
  holdfast run --name sim --every 10m --keep 2 -- ./sim input.dat
  holdfast run --tier dir=/pfs/me,keep=8,every=4 --tier s3://bucket/prefix -- ./sim
  holdfast run --name sim --resume --on TERM=checkpoint-stop -- ./sim input.dat   (in a batch job)
  holdfast run --name sim -- mpirun -np 4 ./sim    (or: mpirun -np 4 holdfast run --name sim -- ./sim)")]
    Run(RunArgs),
    /// Take a checkpoint of a running job now
    #[command(after_help = "\
Examples:
  holdfast checkpoint sim
  holdfast checkpoint --stop sim    (end the program once the image is safe)
  holdfast checkpoint 4711          (the job whose program has this pid)
  holdfast checkpoint --engine fork --cow none sim    (settings for this image only)
  holdfast checkpoint --outside close sim             (with connections to the outside)")]
    Checkpoint(CheckpointArgs),
    /// Take a checkpoint of a running job and end its program once the image is safe (`checkpoint --stop`)
    #[command(after_help = "\
Examples:
  holdfast stop sim && holdfast restart sim    (with other options, on another host ...)

`run` and `restart` of the job end with 75. If the checkpoint fails, the program runs on.")]
    Stop(StopArgs),
    /// Send a signal to the program of a running job, without an image (`stop` takes one)
    #[command(after_help = "\
Examples:
  holdfast kill sim
  holdfast kill --signal KILL sim")]
    Kill(KillArgs),
    /// Report what would prevent a checkpoint of a running program now; the program is not stopped
    #[command(after_help = "\
Examples:
  holdfast check sim                (a running job)
  holdfast check 4711               (any process of yours)
  holdfast check sim && holdfast checkpoint sim

Exit status: 0 if a checkpoint could be taken, 69 if it would be refused.")]
    Check {
        /// Name of the job, or pid of a process
        #[arg(value_name = "JOB|PID", add = jobs())]
        program: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Restart a program from an image
    #[command(after_help = "\
Examples:
  holdfast restart sim              (from the newest image)
  holdfast restart sim@3            (from image 3)
  holdfast restart --fallback sim   (from the newest image that is not damaged)
  holdfast restart --map /scratch/17=/scratch/18 sim    (its files have moved)
  holdfast restart --name sim-b sim@3                   (a copy, as another job)
  holdfast restart --all-lost       (after a reboot)
  holdfast restart --every 30m --keep 2 --on TERM=checkpoint-stop sim    (from now on)")]
    Restart(RestartArgs),
    /// Put a running program back into what an image has of it, in its own processes
    #[command(after_help = "\
Examples:
  holdfast rollback sim             (to the newest image of this run)
  holdfast rollback sim@3           (to image 3)

Memory, registers, signals, timers, and offsets and flags of descriptors go back; files as at a restart. Refused
by name, with the program untouched, where processes, threads or descriptors are others than in the image:
`holdfast restart` goes back to it in new processes.")]
    Rollback(RollbackArgs),
    /// Change the settings of a job, also while it runs; without options: print them
    #[command(after_help = "\
Examples:
  holdfast set sim --every 5m --keep 2
  holdfast set sim --on TERM=checkpoint-stop
  holdfast set sim --every 0 --rate none     (unset both)")]
    Set(SetArgs),
    /// List the jobs of the store, or the images of one
    #[command(visible_alias = "status")]
    #[command(after_help = "\
Examples:
  holdfast list
  holdfast list sim                 (its images)
  holdfast list --tier dir=/pfs/me")]
    List {
        /// Name of the job whose images are listed
        #[arg(add = jobs())]
        job: Option<String>,
        /// List what is on this tier, instead of the store
        #[arg(long, value_name = "ADDRESS")]
        tier: Option<TierSpec>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an image: its content, its changes, and the parts of its stop time
    #[command(after_help = "\
Examples:
  holdfast show sim                 (the newest image)
  holdfast show sim@3")]
    Show {
        /// JOB (the newest image) or JOB@N
        #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
        image: ImageName,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the streams of this user on this host, and who reads them (docs/streams.md)
    #[command(after_help = "\
Examples:
  holdfast streams
  holdfast streams --json sim")]
    Streams(StreamsArgs),
    /// Print an object of a stream, beside the program that writes it, or a variable of a job's program from its
    /// images; without an object: list them
    #[command(after_help = "\
Examples:
  holdfast cat sim/0                          (its objects)
  holdfast cat sim/0@12 temperature > t.bin   (of version 12)
  holdfast cat --follow sim/0 temperature | ./analyse
  holdfast cat --image sim                    (variables of the program of job sim)
  holdfast cat --image sim@3 grid > grid.bin  (as image 3 has it)
  holdfast cat --image sim --follow '*field+8M' | ./analyse")]
    Cat(CatArgs),
    /// Write a page of HTML about a job: stop times, sizes, flushes, tiers, over all its images
    #[command(after_help = "\
Examples:
  holdfast report sim -o sim.html
  holdfast report sim -o - | mail -s sim me@example.org")]
    Report {
        /// Name of the job
        #[arg(add = jobs())]
        job: String,
        /// File to write; -: standard output
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Compute which level to checkpoint how often, by costs and mean times between failures
    #[command(after_help = "\
Examples:
  holdfast plan --level local,cost=30s,restart=60s,mtbf=3d
  holdfast plan --from sim --mtbf 12h               (with the costs of its images)
  holdfast plan --from sim --mtbf local=12h --mtbf dir=/pfs/me=30d --work 7d
  holdfast plan --level local,cost=2s,mtbf=12h --level xor,cost=5s,restart=60s,mtbf=4d
    --level dir=/pfs,flush=10m,slow=5%,restart=15m,mtbf=60d

What the columns are, and what is assumed: docs/plan.md.")]
    Plan(PlanArgs),
    /// Print the log of a job's agent: failures and their causes
    #[command(after_help = "\
Examples:
  holdfast logs sim
  holdfast logs -f sim              (and new lines, until the job ends)")]
    Logs {
        /// Name of the job
        #[arg(add = jobs())]
        job: String,
        /// Print new lines, too, until the job ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Follow the state of a running job until it ends
    #[command(after_help = "\
Examples:
  holdfast watch sim
  holdfast watch --json sim         (a line for each change)")]
    Watch {
        /// Name of the job
        #[arg(add = jobs())]
        job: String,
        /// Print JSON, a line for each change
        #[arg(long)]
        json: bool,
    },
    /// Compare every byte of images with checksums, on any tier, and repair them from intact copies on other tiers
    #[command(after_help = "\
Examples:
  holdfast verify sim               (all images in the store)
  holdfast verify sim@3 --tier dir=/pfs/me
  holdfast verify sim --all-tiers --repair
  holdfast verify                   (all jobs of the store)")]
    Verify(VerifyArgs),
    /// Copy images to the tiers that lack them
    #[command(after_help = "\
Examples:
  holdfast sync sim                 (after the death of an agent; a live one tries again at once)
  holdfast sync --wait sim          (until every tier has its images)
  holdfast sync --tier dir=/pfs/me sim")]
    Sync(SyncArgs),
    /// Copy an image from a lower tier back into the store
    #[command(after_help = "\
Examples:
  holdfast fetch sim                (the newest image on the job's tiers)
  holdfast fetch --tier s3://bucket/prefix sim@12

`restart` reads an image from a tier by itself if the store lacks it.")]
    Fetch(FetchArgs),
    /// Delete images of jobs from the store, and from the tiers of jobs that do not run
    #[command(after_help = "\
Examples:
  holdfast prune sim --dry-run      (images that the rules of the job's tiers do not keep)
  holdfast prune sim --keep-last 2  (all but the newest two, in the store; the job may run)
  holdfast prune sim other --older-than 7d --keep-last 2
  holdfast prune sim --keep-daily 7 --keep-last 2
  holdfast prune sim --saved        (files that restarts have saved)
  holdfast prune sim --every 10 --max 200G --tier dir=/pfs/me
  holdfast prune sim@3 sim@4 --all-tiers
  holdfast prune sim --all          (all images in the store, and the job)

The plan is printed first, with the space that it frees. Segments that other images use stay.")]
    Prune(PruneArgs),
    /// Delete jobs that do not run, with all their images in the store (`prune --all`)
    #[command(after_help = "\
Examples:
  holdfast rm sim other
  holdfast rm sim --dry-run         (the plan only)")]
    Rm(RmArgs),
    /// Write an image, with all that it needs, to one file
    #[command(after_help = "\
Examples:
  holdfast export sim sim.img       (the newest image)
  holdfast export sim@3 - | ssh host holdfast import -
  holdfast export sim sim.img --tier s3://bucket/prefix
  holdfast export --veloc heat@40 /pfs/me/scratch   (files of VELOC, for all ranks of a set of objects)")]
    Export(ExportArgs),
    /// Make a job of a file that `export` wrote
    #[command(after_help = "\
Examples:
  holdfast import sim.img && holdfast restart sim
  holdfast import sim.img --name copy
  holdfast import --veloc /pfs/me/scratch           (files of VELOC, of all ranks, become a set of objects)
  holdfast import --veloc /pfs/me/scratch --name heat --checksums /pfs/me/meta")]
    Import(ImportArgs),
    /// Report what works on this host for this user, and what would prevent a checkpoint of a program
    #[command(after_help = "\
Examples:
  holdfast doctor
  holdfast doctor --job sim         (with the findings of `holdfast check sim`)")]
    Doctor {
        /// Check this running job, or the process with this pid, too
        #[arg(long, value_name = "JOB|PID", add = jobs())]
        job: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Keep the objects that programs put into the store themselves (the first of them starts it)
    #[command(after_help = "\
Examples:
  holdfast serve                    (ends when no program has used it for a while)
  holdfast serve --memory 4g")]
    Serve(ServeArgs),
    /// Run a command on another host, inside the job: what a launcher calls in place of ssh under `run --gang ssh`
    #[command(after_help = "\
Examples:
  holdfast run --name sim --gang ssh -- mpirun -np 4 --host a:2,b:2 ./sim    (calls holdfast rsh b ...)
  holdfast rsh b hostname           (in a script that runs under --gang ssh)

Options of ssh before HOST are for the ssh that starts the member there, once. Exit status: that of the command,
255 if it cannot be run.")]
    Rsh {
        /// [OPTION]... HOST COMMAND...
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "HOST COMMAND"
        )]
        words: Vec<String>,
    },
    /// Print a script by which a shell completes options and names of jobs
    #[command(after_help = "\
Examples:
  holdfast completions bash > ~/.local/share/bash-completion/completions/holdfast
  source <(holdfast completions zsh)                         (in ~/.zshrc)
  holdfast completions fish > ~/.config/fish/completions/holdfast.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The agent of a job; started by `run`, `restart` and libholdfast.
    #[command(name = "__agent", hide = true)]
    Agent(AgentArgs),
    /// Serves the pages of an image; started by `restart`.
    #[command(name = "__pages", hide = true)]
    Pages(PagesArgs),
    /// Agrees with the other members of a gang on an image; started by `restart`.
    #[command(name = "__meet", hide = true)]
    Meet(MeetArgs),
    /// Reads ahead what a page server serves; started by it.
    #[command(name = "__prefetch", hide = true)]
    Prefetch(PrefetchArgs),
    /// Runs what `rsh` asks for; the program of a member that was added to a gang.
    #[command(name = "__rsh-server", hide = true)]
    RshServer,
    /// Calls the CUDA driver; started by agents and by `doctor`.
    #[command(name = "__cuda", hide = true)]
    Cuda(CudaArgs),
    /// Writes the man pages into a folder, for `make install`.
    #[command(name = "__man", hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
    /// Keeps device memory for programs; started by agents.
    #[command(name = "__keeper", hide = true)]
    Keeper(KeeperArgs),
    /// Has memory of another process; started to try a CUDA driver.
    #[command(name = "__probe", hide = true)]
    Probe(CudaArgs),
    /// Names of the fault points, for tests.
    #[command(name = "__faults", hide = true)]
    Faults {
        /// Those at which a step fails.
        #[arg(long)]
        failing: bool,
    },
}

impl Command {
    /// Whether what it prints is JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Command::Check { json, .. }
            | Command::List { json, .. }
            | Command::Show { json, .. }
            | Command::Watch { json, .. }
            | Command::Doctor { json, .. } => *json,
            Command::Checkpoint(args) => args.json,
            Command::Stop(args) => args.json,
            Command::Rollback(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Plan(args) => args.json,
            Command::Sync(args) => args.copy.json,
            Command::Fetch(args) => args.copy.json,
            Command::Prune(args) => args.json,
            Command::Rm(args) => args.json,
            Command::Streams(args) => args.json,
            Command::Cat(args) => args.json,
            _ => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::settings::{Changes, EngineChoice, OrderChoice, Settings};
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_the_command_as_it_is() {
        let cli =
            parse("holdfast run --name a --every 1m --keep 2 --on TERM=checkpoint-stop -- ls -l --name b")
                .unwrap();
        let Command::Run(run) = cli.command else { unreachable!() };
        assert_eq!(run.command, ["ls", "-l", "--name", "b"]);
        let settings = run.settings();
        assert_eq!((settings.every_s, settings.keep), (Some(60), Some(2)));
        assert_eq!(settings.stop_signal, Some(libc::SIGTERM));
        let Command::Run(run) = parse("holdfast run ls --help").unwrap().command else { unreachable!() };
        assert_eq!(run.command, ["ls", "--help"]);
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "holdfast",
            "holdfast run --enginee copy -- true",
            "holdfast run -z ls",
            "holdfast run",
            "holdfast prune a --keep-last 0",
            "holdfast run --resume -- ls",
            "holdfast run --every never -- ls",
            "holdfast run --engine steam -- ls",
            "holdfast run --order random -- ls",
            "holdfast run --cow much -- ls",
            "holdfast run --gpu-cache much -- ls",
            "holdfast run --rate 1 -- ls",
            "holdfast checkpoint --engine steam a",
            "holdfast restart",
            "holdfast restart a@x",
            "holdfast restart --lazy --eager a",
            "holdfast prune",
            "holdfast prune a --every 0",
            "holdfast plan --level cost=3s",
            "holdfast plan --level a,cost=-3s",
            "holdfast plan --mtbf 0",
            "holdfast plan --work never",
            "holdfast import",
            "holdfast prune a --keep 1 --all",
            "holdfast list a extra",
            "holdfast frobnicate",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_flush_is_chosen_by_three_commands() {
        let line = "holdfast run --engine slots --order address --cow 16M --rate 55M -- ls";
        let Command::Run(run) = parse(line).unwrap().command else { unreachable!() };
        let settings = run.settings();
        assert_eq!((settings.engine, settings.order), (EngineChoice::Slots, OrderChoice::Address));
        assert_eq!((settings.cow, settings.rate), ("16M".parse().unwrap(), Some(55 << 20)));
        let Command::Run(run) = parse("holdfast run -- ls").unwrap().command else { unreachable!() };
        assert_eq!(run.settings(), Settings::default());
        assert_eq!(run.settings().cow.to_string(), "5%");
        let changes = Changes { engine: Some(EngineChoice::Copy), ..Changes::default() };
        for line in ["holdfast checkpoint --engine copy a", "holdfast restart --engine copy a"] {
            let found = match parse(line).unwrap().command {
                Command::Checkpoint(args) => args.changes,
                Command::Restart(args) => args.new.changes,
                _ => unreachable!(),
            };
            assert_eq!(found, changes);
        }
    }

    #[test]
    fn waiting_is_the_default() {
        let no_wait = |line: &str| match parse(line).unwrap().command {
            Command::Checkpoint(args) => args.no_wait,
            _ => unreachable!(),
        };
        assert!(!no_wait("holdfast checkpoint a"));
        assert!(!no_wait("holdfast checkpoint --wait a"));
        assert!(no_wait("holdfast checkpoint --no-wait a"));
    }
}
