//! `holdfast run`, and what `holdfast set` changes.

use super::gang::GangArgs;
use super::on_failure::{OnFailure, is_restarted};
use super::on_restart::OnRestart;
use super::restart::StdioChoice;
use crate::completion::jobs;
use crate::levels::MtbfSpec;
use crate::new_settings::NewSettings;
use crate::settings::{
    AioChoice, Allocator, Cow, CudaChoice, EngineChoice, Every, IoUringChoice, OrderChoice, OutsideChoice,
    SaveFiles, Settings, Skipped, Spot, parse_on, parse_rate, parse_signal, parse_size,
};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use holdfast_image::processor::CpuLevel;
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::stack::{JobTiers, TierSpec};
use std::ffi::OsString;

/// `holdfast run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the job [default: the program's name and a number]
    #[arg(long, value_name = "JOB", add = jobs())]
    pub name: Option<String>,
    /// Take a checkpoint this often, for example 30s, 10m, 1h. auto: as often as `holdfast plan` says, by --mtbf and
    /// what the job's images have cost; the first one after a minute
    #[arg(long, value_name = "TIME|auto")]
    pub every: Option<Every>,
    /// With --every auto: mean time between failures that the level NAME survives and the one below it does not
    /// (memory, local: the store, addresses of tiers); without a name: of a job that has the store alone
    #[arg(long, value_name = "[NAME=]TIME", requires = "every")]
    pub mtbf: Vec<MtbfSpec>,
    /// Keep the newest N images of this run in the store; 0: all
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// Keep the newest image of each of the last N days that have one (UTC), and of the others the newest, or as many
    /// as --keep says; 0: no such rule
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u64>,
    /// Copy images to this tier, too, in the background: ADDRESS[,keep=N][,every=N][,max=SIZE][,rate=SIZE/s], for
    /// example dir=/pfs/me,keep=8,every=4 (may be given more than once, the fastest first). ADDRESS local: rules for
    /// the store itself. memory[,keep=N][,max=SIZE]: images go into memory first, and from there to the store.
    /// log=/FOLDER[,max=SIZE][,full=drop|keep][,wait=SECONDS]: the logs of the program's streams (nvs.h) are there, in
    /// memory, of SIZE each; no images
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
    /// Most GPU memory for changed data that is not in the image yet, and for rollbacks, with
    /// HOLDFAST_CUDA_DATA=keeper: 10% (of the device), 512M or none; programs come first [default:
    /// HOLDFAST_GPU_CACHE, else 10%]
    #[arg(long, value_name = "LIMIT")]
    pub gpu_cache: Option<Cow>,
    /// Store at most so many bytes per second, after compression, for example 55M [default: as fast as it goes]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Allocator of the program: the jemalloc of libholdfast, or the program's own
    #[arg(long, value_enum, default_value_t = Allocator::Jemalloc)]
    pub malloc: Allocator,
    /// Programs that use CUDA. off: nothing of it is seen, and the program gets the driver's own functions; a
    /// checkpoint is refused while it uses CUDA
    #[arg(long, value_enum, default_value_t = CudaChoice::Auto)]
    pub cuda: CudaChoice,
    /// Leave device memory out of images, by the size of an allocation: caches, workspaces. It is zero after a restart.
    /// For example 1G.. or 64M..256M; only memory of cuMemAlloc and cudaMalloc that libholdfast owns
    #[arg(long, value_name = "MIN..MAX", conflicts_with = "only_protected")]
    pub cuda_skip: Option<Skipped>,
    /// io_uring, which no image can hold. off: the program finds none, as on a kernel without it, and goes another way.
    /// keep: it finds the kernel's, and a checkpoint is refused while it has a ring
    #[arg(long, value_enum, default_value_t = IoUringChoice::Off)]
    pub io_uring: IoUringChoice,
    /// Linux AIO (io_setup). keep: the program finds the kernel's; a checkpoint waits until no request is under way.
    /// off: through libaio it finds none; databases go another way then (MariaDB, MySQL), but programs that need it do
    /// not start
    #[arg(long, value_enum, default_value_t = AioChoice::Keep)]
    pub aio: AioChoice,
    /// Take a checkpoint when this signal arrives (at the program or at `holdfast run`)
    #[arg(long, value_name = "SIG", value_parser = parse_signal)]
    pub signal: Option<i32>,
    /// When SIG arrives (at the program or at `holdfast run`): take a checkpoint, end the program, exit with 75
    #[arg(long, value_name = "SIG=checkpoint-stop", value_parser = parse_on)]
    pub on: Option<i32>,
    /// When the cloud is about to take this machine away: take a checkpoint, end the program, exit with 75. aws, gcp
    /// and azure ask the cloud's metadata service every two seconds. CMD is run by a shell every two seconds, or as
    /// soon as it has ended, and status 0 is the notice
    #[arg(long, value_name = "aws|gcp|azure|CMD")]
    pub on_spot: Option<Spot>,
    /// End the program, and exit with 70, when it cannot be protected any more: its agent has died, or an automatic
    /// checkpoint (of --every, say) has failed twice
    #[arg(long)]
    pub strict: bool,
    /// Run CMD by a shell after each image. HOLDFAST_IMAGE is the number of the image, HOLDFAST_IMAGE_PATH its path,
    /// HOLDFAST_STATE running or stopped, HOLDFAST_JOB the job. Holdfast does not wait for CMD
    #[arg(long, value_name = "CMD")]
    pub exec_after: Option<String>,
    /// Restart the job from its newest image if it has one, else start it afresh. A job that has ended with status 0 is
    /// not run again. Another program, other arguments or another folder than those of the job are refused. If a tier
    /// does not answer that may have a newer image, nothing starts; =reachable: the job goes on from the newest image
    /// that can be reached
    #[arg(
        long,
        requires = "name",
        value_name = "newest|reachable",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "newest"
    )]
    pub resume: Option<Resume>,
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
    /// With --resume.
    #[command(flatten)]
    pub on_restart: OnRestart,
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
    /// Connections to peers outside, TCP and unix (of syslog, D-Bus, X): refuse the checkpoint, or close the
    /// connections at the restart
    #[arg(long, alias = "tcp", value_enum, default_value_t = OutsideChoice::Refuse)]
    pub outside: OutsideChoice,
    /// Of several hosts.
    #[command(flatten)]
    pub gang: GangArgs,
    /// After a failure.
    #[command(flatten)]
    pub on_failure: OnFailure,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// What `--resume` does where a tier does not answer that may have a newer image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Resume {
    /// Nothing is started.
    Newest,
    /// The job goes on from the newest image that can be reached.
    Reachable,
}

/// Names are completed by shells.
fn cpu_level() -> impl TypedValueParser<Value = CpuLevel> {
    PossibleValuesParser::new(CpuLevel::ALL.map(CpuLevel::name)).try_map(|name| name.parse())
}

impl RunArgs {
    /// How pages are to be compressed, if it was said.
    pub fn compression(&self) -> Option<Compression> {
        if self.no_compress { Some(Compression::By(Codec::Raw)) } else { self.compress }
    }
    /// The settings of the job that these arguments ask for.
    pub fn settings(&self) -> Settings {
        Settings {
            every_s: self.every.map(Every::seconds),
            // With the names of the tiers.
            planned: None,
            keep: self.keep.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0),
            keep_daily: self.keep_daily.filter(|&days| days > 0),
            max_space: self.max_space,
            engine: self.engine,
            order: self.order,
            cow: self.cow,
            gpu_cache: self.gpu_cache,
            rate: self.rate,
            malloc: self.malloc,
            io_uring: self.io_uring,
            aio: self.aio,
            cuda: self.cuda,
            cuda_skip: self.cuda_skip,
            self_contained: self.self_contained,
            cpu_baseline: self.cpu_baseline,
            only_protected: self.only_protected,
            compress: self.compression().unwrap_or_default(),
            save_files: self.save_files.unwrap_or_default(),
            rollback_files: self.rollback_files,
            outside: self.outside,
            signal: self.signal,
            stop_signal: self.on,
            on_spot: self.on_spot.clone(),
            strict: self.strict,
            supervised: is_restarted(),
            exec_after: self.exec_after.clone(),
            // With those of configuration files.
            tiers: JobTiers::default(),
            // With that of the job.
            log: None,
            // With the name of the job.
            gang: None,
        }
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
