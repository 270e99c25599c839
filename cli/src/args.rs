//! The command line: the one definition that help, errors and shell completions come from.

use crate::commands::copies::CopyArgs;
use crate::commands::places::Which;
use crate::completion::jobs;
use crate::inherited_fds::InheritedFd;
use crate::names::{ImageName, parse_image};
use crate::new_settings::NewSettings;
use crate::settings::{
    Allocator, Changes, Cow, EngineChoice, OrderChoice, SaveFiles, Settings, TcpChoice, parse_any_signal,
    parse_duration, parse_on, parse_rate, parse_signal, parse_size, parse_wait,
};
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast_image::paths::Moved;
use holdfast_image::processor::CpuLevel;
use holdfast_image::streams::Switch;
use holdfast_process::rebuild::streams::Wish;
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::stack::{JobTiers, TierSpec};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
  holdfast checkpoint --tcp close sim                 (with connections to the outside)")]
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
  holdfast export sim sim.img --tier s3://bucket/prefix")]
    Export(ExportArgs),
    /// Make a job of a file that `export` wrote
    #[command(after_help = "\
Examples:
  holdfast import sim.img && holdfast restart sim
  holdfast import sim.img --name copy")]
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
    /// Reads ahead what a page server serves; started by it.
    #[command(name = "__prefetch", hide = true)]
    Prefetch(PrefetchArgs),
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

/// Reads `OLD=NEW`; paths need not be text.
fn moved() -> impl TypedValueParser<Value = Moved> {
    let read = |text: OsString| {
        let moved = Moved::parse(&text)?;
        Ok::<_, String>(Moved { new: without_links(&moved.new), ..moved })
    };
    OsStringValueParser::new().try_map(read)
}

/// The same place without symbolic links on the way, as far as it is there: a restart follows none.
fn without_links(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|there| Some((there, there.canonicalize().ok()?)));
    let Some((there, real)) = found else { return path.to_owned() };
    match path.strip_prefix(there) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        _ => real,
    }
}

/// Names are completed by shells.
fn cpu_level() -> impl TypedValueParser<Value = CpuLevel> {
    PossibleValuesParser::new(CpuLevel::ALL.map(CpuLevel::name)).try_map(|name| name.parse())
}

/// `holdfast run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the job [default: the program's name and a number]
    #[arg(long, value_name = "JOB", add = jobs())]
    pub name: Option<String>,
    /// Take a checkpoint this often, for example 30s, 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// Keep the newest N images of this run in the store; 0: all
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// Keep the newest image of each of the last N days that have one (UTC), and of the others the newest, or as many
    /// as --keep says; 0: no such rule
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u64>,
    /// Copy images to this tier, too, in the background: ADDRESS[,keep=N][,every=N][,max=SIZE][,rate=SIZE/s], for
    /// example dir=/pfs/me,keep=8,every=4 (may be given more than once, the fastest first). ADDRESS local: rules for
    /// the store itself. memory[,keep=N][,max=SIZE]: images go into memory first, and from there to the store
    /// [default: the tiers of config.toml in the store, else in ~/.config/holdfast]
    #[arg(long, value_name = "SPEC")]
    pub tier: Vec<TierSpec>,
    /// Use no tiers, and ignore those of configuration files
    #[arg(long, conflicts_with = "tier")]
    pub no_tiers: bool,
    /// Most space of the job's images in the store, for example 20G. The oldest images are deleted first; a checkpoint
    /// that still does not fit fails [default: max_space of the configuration files, else no bound]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_space: Option<u64>,
    /// How memory is frozen
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto)]
    pub engine: EngineChoice,
    /// The order in which pages are stored
    #[arg(long, value_enum, default_value_t = OrderChoice::History)]
    pub order: OrderChoice,
    /// Most memory for copies of pages that the program writes while an image is stored: 5% (of its memory), 256M or
    /// none. At the bound the program waits
    #[arg(long, value_name = "LIMIT", default_value_t)]
    pub cow: Cow,
    /// Most GPU memory for changed data that is not in the image yet, with HOLDFAST_CUDA_DATA=keeper: 10% (of the
    /// device), 512M or none; programs come first [default: HOLDFAST_GPU_CACHE, else 10%]
    #[arg(long, value_name = "LIMIT")]
    pub gpu_cache: Option<Cow>,
    /// Store at most so many bytes per second, after compression, for example 55M [default: as fast as it goes]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Allocator of the program: the jemalloc of libholdfast, or the program's own
    #[arg(long, value_enum, default_value_t = Allocator::Jemalloc)]
    pub malloc: Allocator,
    /// Take a checkpoint when this signal arrives (at the program or at `holdfast run`)
    #[arg(long, value_name = "SIG", value_parser = parse_signal)]
    pub signal: Option<i32>,
    /// When SIG arrives (at the program or at `holdfast run`): take a checkpoint, end the program, exit with 75
    #[arg(long, value_name = "SIG=checkpoint-stop", value_parser = parse_on)]
    pub on: Option<i32>,
    /// End the program, and exit with 70, when it cannot be protected any more: its agent has died, or an automatic
    /// checkpoint (of --every, say) has failed twice
    #[arg(long)]
    pub strict: bool,
    /// Run CMD by a shell after each image. HOLDFAST_IMAGE is the number of the image, HOLDFAST_IMAGE_PATH its path,
    /// HOLDFAST_STATE running or stopped, HOLDFAST_JOB the job. Holdfast does not wait for CMD
    #[arg(long, value_name = "CMD")]
    pub exec_after: Option<String>,
    /// Restart the job from its newest image if it has one, else start it afresh. A job that has ended with status 0 is
    /// not run again. Another program, other arguments or another folder than those of the job are refused
    #[arg(long, requires = "name")]
    pub resume: bool,
    /// With --resume: restart the job although the command or the folder differs
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Delete the job's images of another program from the store
    #[arg(long, requires = "name", conflicts_with = "resume")]
    pub replace: bool,
    /// With --resume: the standard streams that were files, as for `restart`
    #[arg(
        long,
        value_name = "auto|keep|here",
        value_enum,
        default_value_t,
        hide_default_value = true,
        requires = "resume"
    )]
    pub stdio: StdioChoice,
    /// Store the program text and the libraries, too
    #[arg(long, conflicts_with = "only_protected")]
    pub self_contained: bool,
    /// Let the C library and numeric libraries use no instructions beyond this level, so that images can be restarted
    /// on every processor of this level [default: all instructions of this processor]
    #[arg(long, value_name = "LEVEL", value_parser = cpu_level())]
    pub cpu_baseline: Option<CpuLevel>,
    /// Store only memory from holdfast_malloc_protected(); the program restores itself
    #[arg(long)]
    pub only_protected: bool,
    /// Compression of pages. auto: the codec by which an image is durable soonest, by samples and the measured speed of
    /// the store, or none if that is faster. none: larger images, which can be restarted lazily as a whole. lz4, zstd,
    /// shuffle-lz4, shuffle-zstd (for arrays of numbers): this codec, except for pages that hardly become smaller.
    /// Example: --compress zstd [default: that of config.toml in the store, else in ~/.config/holdfast, else auto]
    #[arg(long, value_name = "auto|none|CODEC")]
    pub compress: Option<Compression>,
    /// The same as --compress none
    #[arg(long, conflicts_with = "compress", hide = true)]
    pub no_compress: bool,
    /// Files whose content is in the image, so that a restart restores them. auto: files that the program changes in
    /// place, up to 256M together; more gives a warning. SIZE (without a value: 256M): all files that the program has
    /// open for writing; more is refused. none: no files [default: auto]
    #[arg(
        long,
        value_name = "auto|none|SIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "256M",
        conflicts_with = "only_protected"
    )]
    pub save_files: Option<SaveFiles>,
    /// Save small files, too, that the program has written and closed in its working folder and below (256K each, 64
    /// files, 4M together). A restart restores them, as it restores open files. A watcher of such a file (inotify) sees
    /// it opened
    #[arg(long, conflicts_with = "only_protected")]
    pub rollback_files: bool,
    /// TCP connections to peers outside: refuse the checkpoint, or close the connections at the restart
    #[arg(long, value_enum, default_value_t = TcpChoice::Refuse)]
    pub tcp: TcpChoice,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
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
            Command::Verify(args) => args.json,
            Command::Sync(args) => args.copy.json,
            Command::Fetch(args) => args.copy.json,
            Command::Prune(args) => args.json,
            Command::Rm(args) => args.json,
            _ => false,
        }
    }
}

impl RunArgs {
    /// How pages are to be compressed, if it was said.
    pub fn compression(&self) -> Option<Compression> {
        if self.no_compress { Some(Compression::By(Codec::Raw)) } else { self.compress }
    }
    /// The settings of the job that these arguments ask for.
    pub fn settings(&self) -> Settings {
        Settings {
            every_s: self.every.map(|time| time.as_secs()),
            keep: self.keep.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0),
            keep_daily: self.keep_daily.filter(|&days| days > 0),
            max_space: self.max_space,
            engine: self.engine,
            order: self.order,
            cow: self.cow,
            gpu_cache: self.gpu_cache,
            rate: self.rate,
            malloc: self.malloc,
            self_contained: self.self_contained,
            cpu_baseline: self.cpu_baseline,
            only_protected: self.only_protected,
            compress: self.compression().unwrap_or_default(),
            save_files: self.save_files.unwrap_or_default(),
            rollback_files: self.rollback_files,
            tcp: self.tcp,
            signal: self.signal,
            stop_signal: self.on,
            strict: self.strict,
            exec_after: self.exec_after.clone(),
            // With those of configuration files.
            tiers: JobTiers::default(),
        }
    }
}

/// `holdfast checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// Return when the image is committed (the default)
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Return as soon as the program runs again
    #[arg(long)]
    pub no_wait: bool,
    /// End the program once the image is committed
    #[arg(long)]
    pub stop: bool,
    /// This time only.
    #[command(flatten)]
    pub changes: Changes,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// JOB (the newest image) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, required_unless_present = "all_lost", add = jobs())]
    pub image: Option<ImageName>,
    /// Restart every lost job (its end was not seen) from its newest image, after a reboot, and wait for their ends
    #[arg(long, exclusive = true)]
    pub all_lost: bool,
    /// Start the program at once, and read memory from the image when the program touches it, where possible
    #[arg(long, conflicts_with = "eager")]
    pub lazy: bool,
    /// Read all memory before the program runs
    #[arg(long)]
    pub eager: bool,
    /// If the image is damaged, take the next older one
    #[arg(long)]
    pub fallback: bool,
    /// From now on these are the job's tiers, as for `run`. They supply what the store lacks of the image
    #[arg(long, value_name = "SPEC")]
    pub tier: Vec<TierSpec>,
    /// From now on most space of the job's images in the store, as for `run`
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_space: Option<u64>,
    /// Restart a copy, as a job of its own with this name: any number of copies may run at once
    #[arg(long, value_name = "NEW", conflicts_with = "fallback")]
    pub name: Option<String>,
    /// Look for files and folders of the program below NEW instead of OLD (may be given more than once)
    #[arg(long, value_name = "OLD=NEW", value_parser = moved())]
    pub map: Vec<Moved>,
    /// Wait at most TIME for the processes of a program that was just killed, until they have released their memory,
    /// sockets, locks and ids; 0: do not wait [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub wait: Option<Duration>,
    /// Use the file at PATH although its owner has changed, or more users may write to it (may be given more than once)
    #[arg(long, value_name = "PATH")]
    pub accept_replaced: Vec<PathBuf>,
    /// Standard streams of the program that were files. keep: the program goes on in its files. here: it gets the
    /// streams of this command. auto: it goes on in its files, but gets those streams of this command that are
    /// redirected to a file or a pipe. Streams that were terminals or pipes are always those of this command
    #[arg(long, value_name = "auto|keep|here", value_enum, default_value_t, hide_default_value = true)]
    pub stdio: StdioChoice,
    /// From now on most GPU memory for data that is not in the image yet, as for `run`
    #[arg(long, value_name = "LIMIT")]
    pub gpu_cache: Option<Cow>,
    /// From now on end the program when it cannot be protected any more, as for `run`
    #[arg(long)]
    pub strict: bool,
    /// From now on.
    #[command(flatten)]
    pub new: NewSettings,
}

impl RestartArgs {
    /// What the job goes on with.
    pub fn settings(&self, old: &Settings) -> Settings {
        let (max_space, strict) = (self.max_space.or(old.max_space), self.strict || old.strict);
        let gpu_cache = self.gpu_cache.or(old.gpu_cache);
        Settings { max_space, strict, gpu_cache, ..self.new.apply(old) }
    }
}

/// `holdfast set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the job
    #[arg(add = jobs())]
    pub job: String,
    /// What changes.
    #[command(flatten)]
    pub new: NewSettings,
}

/// `holdfast stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// This time only.
    #[command(flatten)]
    pub changes: Changes,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl StopArgs {
    /// It is a checkpoint that ends the program.
    pub fn checkpoint(&self) -> CheckpointArgs {
        let (job, changes) = (self.job.clone(), self.changes);
        CheckpointArgs { job, wait: true, no_wait: false, stop: true, changes, json: self.json }
    }
}

/// `holdfast kill`.
#[derive(Debug, Args)]
pub struct KillArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// The signal
    #[arg(short, long, value_name = "SIG", default_value = "TERM", value_parser = parse_any_signal)]
    pub signal: i32,
}

/// `holdfast rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Names of the jobs
    #[arg(value_name = "JOB", required = true, add = jobs())]
    pub jobs: Vec<String>,
    /// Print the plan, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RmArgs {
    /// It is a prune that leaves nothing in the store.
    pub fn prune(&self) -> PruneArgs {
        let images = self.jobs.iter().map(|job| ImageName { job: job.clone(), epoch: None }).collect();
        PruneArgs { images, all: true, dry_run: self.dry_run, json: self.json, ..PruneArgs::default() }
    }
}

/// `--stdio`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum StdioChoice {
    /// On in their files, unless they are redirected.
    #[default]
    Auto,
    /// On in their files.
    Keep,
    /// Where the command's own lead.
    Here,
}

impl StdioChoice {
    /// In the words of the restart.
    pub fn wish(self) -> Wish {
        match self {
            StdioChoice::Auto => Wish::Auto,
            StdioChoice::Keep => Wish::Keep,
            StdioChoice::Here => Wish::Here,
        }
    }
}

/// `holdfast sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Name of the job
    #[arg(add = jobs())]
    pub job: String,
    /// How.
    #[command(flatten)]
    pub copy: CopyArgs,
}

/// `holdfast fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// JOB (the newest image that any tier has) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: ImageName,
    /// How.
    #[command(flatten)]
    pub copy: CopyArgs,
    /// Copy nothing: number and manifest go to standard output, for `restart`
    #[arg(long, hide = true)]
    pub manifest: bool,
}

/// `holdfast verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// JOB (all its images) or JOB@N [default: all jobs of the store]
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: Option<ImageName>,
    /// Where.
    #[command(flatten)]
    pub which: Which,
    /// Replace damaged and missing parts by intact copies from other tiers of the job (not while the job runs)
    #[arg(long)]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast prune`.
#[derive(Debug, Default, Args)]
pub struct PruneArgs {
    /// Jobs, or images to delete: JOB@3 JOB@4. Without images and rules: images that the job's own rules do not keep,
    /// in the store and on all tiers
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, required = true, add = jobs())]
    pub images: Vec<ImageName>,
    /// Keep the newest N images, at least one (--all deletes all)
    #[arg(long, visible_alias = "keep-last", value_name = "N", conflicts_with = "all")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub keep: Option<u64>,
    /// Delete only images older than TIME, for example 7d; the newest image stays
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "all")]
    pub older_than: Option<Duration>,
    /// Keep the newest image of each of the last N days that have one (UTC); may be given with --keep-last
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_daily: Option<u64>,
    /// Delete the files that restarts have saved (`saved/`): parts that they cut off, and files that they found in the
    /// place of others. With --older-than only older ones, with --all also those that another restart may need
    #[arg(long)]
    pub saved: bool,
    /// Keep images whose number is a multiple of N, and the newest one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "all")]
    pub every: Option<u64>,
    /// Keep the newest images of together at most SIZE bytes, for example 200G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "all")]
    pub max: Option<u64>,
    /// Delete all images, and (in the store) the job
    #[arg(long)]
    pub all: bool,
    /// Where.
    #[command(flatten)]
    pub which: Which,
    /// Delete also the last image that can be restarted, and images that a tier has yet to get
    #[arg(long)]
    pub anyway: bool,
    /// Print the plan, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PruneArgs {
    /// Whether rules are given.
    pub fn has_rules(&self) -> bool {
        self.all || self.saved || self.has_image_rules()
    }
    /// Whether rules for images are given.
    pub fn has_image_rules(&self) -> bool {
        let bounds = self.keep.is_some() || self.every.is_some() || self.max.is_some();
        bounds || self.keep_daily.is_some() || (self.older_than.is_some() && !self.saved)
    }
    /// Whether images or rules are given.
    pub fn asks(&self) -> bool {
        self.has_rules() || self.images.iter().any(|image| image.epoch.is_some())
    }
}

/// `holdfast export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// JOB (the newest image) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: ImageName,
    /// The file, which must not exist; `-`: standard output
    pub file: PathBuf,
    /// Where.
    #[command(flatten)]
    pub which: Which,
}

/// `holdfast import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file; `-`: standard input
    pub file: PathBuf,
    /// Name of the job, which must have no image [default: that of the exported job]
    #[arg(long, value_name = "JOB")]
    pub name: Option<String>,
}

/// `holdfast __agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Name of the job.
    #[arg(long, required_unless_present = "attach_env")]
    pub job: Option<String>,
    /// Descriptor of the link to `holdfast run` or `restart`.
    #[arg(long)]
    pub link: Option<i32>,
    /// Number of the image to restart from.
    #[arg(long, requires = "seed")]
    pub restart: Option<u64>,
    /// Descriptor of the socket to the process that is being rebuilt.
    #[arg(long)]
    pub seed: Option<i32>,
    /// Map memory from the image.
    #[arg(long)]
    pub lazy: bool,
    /// Have processes map what they have in common.
    #[arg(long)]
    pub share: bool,
    /// The first of the new processes has the file of a page server.
    #[arg(long)]
    pub served: bool,
    /// Files that were moved.
    #[arg(long, value_parser = moved())]
    pub map: Vec<Moved>,
    /// Files that are used though they are another user's.
    #[arg(long)]
    pub accept_replaced: Vec<PathBuf>,
    /// A stream that becomes one of `holdfast restart`.
    #[arg(long, value_name = "DESCRIPTION:NUMBER:FROM:WHOLE")]
    pub stream: Vec<Switch>,
    /// A descriptor that the program was started with.
    #[arg(long, value_name = "FD:DEVICE:INODE")]
    pub inherited: Vec<InheritedFd>,
    /// The program cannot load libholdfast.
    #[arg(long, requires = "link")]
    pub silent: bool,
    /// Started by libholdfast: settings come from HOLDFAST_*, the socket's path goes to standard output.
    #[arg(long)]
    pub attach_env: bool,
}

/// `holdfast __pages`.
#[derive(Debug, Args)]
pub struct PagesArgs {
    /// Name of the job.
    #[arg(long)]
    pub job: String,
    /// Number of the image.
    #[arg(long)]
    pub image: u64,
    /// Descriptor of the socket to `holdfast restart`.
    #[arg(long)]
    pub front: i32,
}

/// `holdfast __prefetch`.
#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// Name of the job, for those who look at processes.
    #[arg(long)]
    pub job: String,
    /// Descriptor of the socket to the page server.
    #[arg(long)]
    pub server: i32,
    /// Descriptor of the socket to `holdfast restart`.
    #[arg(long)]
    pub front: i32,
}

/// `holdfast __cuda`, `holdfast __probe`.
#[derive(Debug, Args)]
pub struct CudaArgs {
    /// Descriptor of the socket to the agent.
    #[arg(long)]
    pub agent: i32,
    /// The libcuda to be loaded.
    #[arg(long)]
    pub library: PathBuf,
}

/// `holdfast __keeper`.
#[derive(Debug, Args)]
pub struct KeeperArgs {
    /// Descriptor of the socket to the agent.
    #[arg(long)]
    pub agent: i32,
    /// Descriptor of the file for contents.
    #[arg(long)]
    pub ring: i32,
    /// Most device memory for what an image does not have yet.
    #[arg(long)]
    pub gpu_cache: Cow,
    /// Where programs ask.
    #[arg(long)]
    pub socket: PathBuf,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
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
