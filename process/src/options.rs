//! How a cut is to be made: what the agent decides, and hands to the tracer. Plain data.

use crate::capture::contents::Contents;
use crate::freeze::guard::GuardOptions;
use crate::gang::Gang;
use crate::mapped_files::MappedFiles;
use crate::namespaces::Namespaces;
use holdfast_image::PageCount;
use holdfast_image::cuda::CudaRecord;
use holdfast_image::host_addresses::MovedAddress;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::processor::CpuLevel;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How the memory of the instant is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// What costs less for the pages that are dirty: copy or fork.
    Auto,
    /// Dirty pages are copied inside the stop.
    Copy,
    /// A frozen copy: the program runs on while it is written.
    Fork,
    /// Large memory is made read-only and copied page by page when the program writes to it; what cannot be done so is
    /// copied inside the stop. Where the engine does not suit: fork.
    Slots,
    /// The program is stopped until its image is written (for comparison, and where a clone is refused).
    Sync,
}

/// What is to be done with the dirty pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Copy them inside the stop; otherwise a frozen copy is made.
    pub copy: bool,
    /// Ranges without dirty pages to be kept out of the frozen copy, each inside one mapping.
    pub keep_out: Vec<PageRun>,
}

/// Decides for engine `auto` and `fork`: gets the dirty pages, all present pages, and the private mappings.
pub type Planner = fn(&PageSet, &PageSet, &[PageRun]) -> Plan;

/// How to cut.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// See [`Engine`].
    pub engine: Engine,
    /// Decides between copy and fork, and what the frozen copy goes without.
    pub planner: Planner,
    /// More pages of a process are not copied inside the stop, whatever the engine: there is no memory for it.
    pub most_copied: Option<PageCount>,
    /// For engine `slots`.
    pub guard: GuardOptions,
    /// Keep the program stopped afterwards: it is to be ended once the image is committed.
    pub hold: bool,
    /// Keep the program held ([`crate::Cut::parked`]) if a frozen copy has more pages than this: it would exceed a
    /// small bound on copies before anybody can look.
    pub park_above: Option<PageCount>,
    /// Store the content of mapped files too.
    pub self_contained: bool,
    /// What the program was told to keep to.
    pub baseline: Option<CpuLevel>,
    /// Socket of the agent: the environment of all processes of the job names it.
    pub socket: PathBuf,
    /// What proves that an environment is of the job ([`crate::Kinship`]); may be empty.
    pub key: Vec<u8>,
    /// Those of the job: what is in others is refused.
    pub namespaces: Arc<Namespaces>,
    /// Mappings of the program change all the time: their flags are looked at inside the stop.
    pub changing: bool,
    /// What the restart before has mapped of its image.
    pub mapped: Arc<MappedFiles>,
    /// Longest time from the first interrupt to the last thread's stop.
    pub deadline: Duration,
    /// Store just these ranges.
    pub only: Option<Vec<PageRun>>,
    /// Flush these ranges first.
    pub first: Vec<PageRun>,
    /// Descriptors that the program was started with: number, device, inode. Pipes and sockets among them lead outside
    /// and are taken from `holdfast restart` again.
    pub inherited: Vec<(i32, u64, u64)>,
    /// `holdfast run` or `restart`, while it lives: its standard streams are those that the program was given.
    pub front: Option<i32>,
    /// TCP connections to peers outside are lost at a restart, instead of refused.
    pub lose_connections: bool,
    /// What is in files that the programs change is part of the image.
    pub contents: Option<Arc<Contents>>,
    /// Processes whose CUDA state the driver has brought into their memory ([`crate::cuda`]), by their ids.
    pub cuda: BTreeMap<i32, CudaRecord>,
    /// Addresses that the programs know and that are others since a restart.
    pub addresses: Arc<[MovedAddress]>,
    /// The members of a gang: all of them make this cut together.
    pub gang: Option<Arc<dyn Gang>>,
    /// How long the program is stopped for the sake of other members at most.
    pub together: Duration,
}

impl Default for CutOptions {
    fn default() -> CutOptions {
        CutOptions {
            engine: Engine::Fork,
            planner: |_, _, _| Plan::default(),
            most_copied: None,
            guard: GuardOptions::default(),
            hold: false,
            park_above: None,
            self_contained: false,
            baseline: None,
            socket: PathBuf::new(),
            key: Vec::new(),
            namespaces: Arc::default(),
            changing: false,
            mapped: Arc::default(),
            deadline: Duration::from_millis(50),
            only: None,
            first: Vec::new(),
            inherited: Vec::new(),
            front: None,
            lose_connections: false,
            contents: None,
            cuda: BTreeMap::new(),
            addresses: Arc::default(),
            gang: None,
            together: Duration::from_millis(1500),
        }
    }
}
