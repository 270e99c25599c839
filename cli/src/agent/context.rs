//! What all checkpoints of one agent share: the job, its settings, and what one leaves for the next.
//!
//! Made at the agent's start, used by its loop and by the checkpoint thread. Invariant: one checkpoint at a time has
//! `carry_over`.

use super::carry_over::CarryOver;
use super::cuda::Cuda;
use super::membership::Membership;
use crate::earlier::Earlier;
use crate::exit::Failure;
use crate::front_link::{Link, Tell};
use crate::new_settings::NewSettings;
use crate::settings::{Recipe, Settings};
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::host_addresses::MovedAddress;
use holdfast_process::{Contents, MappedFiles, Namespaces};
use holdfast_tiers::layer::Bounded;
use holdfast_tiers::policy::Pinned;
use holdfast_tiers::stack::Cascade;
use holdfast_tiers::{Job, JobLock, Share, Store};
use parking_lot::Mutex;
use std::fs;
use std::sync::{Arc, OnceLock};

/// See the head of the file.
pub struct JobContext {
    /// The store.
    pub store: Store,
    /// The job.
    pub job: Job,
    /// Held as long as the agent lives.
    pub lock: JobLock,
    /// Settings of the job; see [`JobContext::settings`].
    pub settings: Mutex<Arc<Settings>>,
    /// The folder in which it was started.
    pub cwd: Name,
    /// Command line of the program.
    pub command: Vec<Name>,
    /// The run: its images have that.
    pub run_ns: u64,
    /// What there was when the run began.
    pub earlier: Earlier,
    /// See [`Recipe::unnamed`].
    pub unnamed: bool,
    /// What no other user knows of the job, and proves its processes: from the environment of the program, or, after a
    /// restart, from the image; may be empty.
    pub key: OnceLock<Vec<u8>>,
    /// To the front, if there is one.
    pub link: Option<Link>,
    /// The front, while it lives.
    pub front: Option<i32>,
    /// The program was started without a front: the library started the agent.
    pub attached: bool,
    /// The image that the program was restarted from: it may be mapped from it, so it is never deleted.
    pub restarted_from: Option<Epoch>,
    /// See [`JobContext::mapped`]; set by a restart.
    pub mapped: OnceLock<Arc<MappedFiles>>,
    /// See [`JobContext::namespaces`]; set by a restart.
    pub namespaces: OnceLock<Arc<Namespaces>>,
    /// Addresses that the programs know and that are others; set by a restart.
    pub addresses: OnceLock<Arc<[MovedAddress]>>,
    /// What is saved of files, and what the last image has of that.
    pub contents: Option<Arc<Contents>>,
    /// Copies images to lower tiers, if the job has tiers.
    pub cascade: Option<Cascade>,
    /// The bound on the space of the job's images, if there is one.
    pub bounded: Option<Arc<Bounded>>,
    /// What others who write into the store are told.
    pub share: Arc<Share>,
    /// The driver of those processes that use CUDA.
    pub cuda: Cuda,
    /// The gang that it is a member of.
    pub gang: Option<Membership>,
    /// What one checkpoint leaves for the next; locked as long as one runs.
    pub carry_over: Mutex<CarryOver>,
}

impl JobContext {
    /// See the field.
    pub fn key(&self) -> &[u8] {
        self.key.get().map_or(&[], Vec::as_slice)
    }

    /// As they are now.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock())
    }

    /// Time between two checkpoints, seconds; of a gang the leader has it.
    pub fn every_s(&self) -> Option<u64> {
        let is_led = self.gang.as_ref().is_some_and(|gang| !gang.is_leader());
        self.settings().every_s.filter(|_| !is_led)
    }

    /// Goes on with other settings, which a restart finds, too.
    ///
    /// # Errors
    /// `job.json` cannot be read or written; all is as before.
    pub fn set(&self, new: &NewSettings) -> Result<(), Failure> {
        let old = Recipe::read(&self.job)?;
        let settings = new.apply(&self.settings());
        Recipe { settings: settings.clone(), ..old }.write(&self.job)?;
        if let Some(link) = &self.link {
            link.tell(&Tell::Settings { signal: settings.signal, stop_signal: settings.stop_signal });
        }
        self.share.want_rate(settings.rate);
        *self.settings.lock() = Arc::new(settings);
        Ok(())
    }

    /// Says something in the log, and to the front.
    pub fn warn(&self, text: String) {
        tracing::warn!("{text}");
        if let Some(link) = &self.link {
            link.tell(&Tell::Warning { text });
        }
    }

    /// The front, if it still lives: it is our parent.
    pub fn front(&self) -> Option<i32> {
        self.front.filter(|front| i32::try_from(std::os::unix::process::parent_id()) == Ok(*front))
    }

    /// Images that stay while this run goes on.
    pub fn pinned(&self) -> Pinned {
        Pinned { restarted_from: self.restarted_from.map(|epoch| epoch.0), run_before: self.earlier.kept() }
    }

    /// What the restart has mapped of its image.
    pub fn mapped(&self) -> Arc<MappedFiles> {
        self.mapped.get().cloned().unwrap_or_default()
    }

    /// The namespaces that all processes of the job are in: those that the restart gave them, or else ours.
    pub fn namespaces(&self) -> &Arc<Namespaces> {
        self.namespaces.get_or_init(|| Arc::new(Namespaces::own()))
    }

    /// Fills in the command line of a job that was started by the library alone, from its first process.
    pub fn complete_recipe(&self, pid: i32) {
        if !self.command.is_empty() {
            return;
        }
        let Ok(mut recipe) = Recipe::read(&self.job) else { return };
        if !recipe.command.is_empty() {
            return;
        }
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        recipe.command = line
            .strip_suffix(b"\0")
            .unwrap_or(&line)
            .split(|&c| c == 0)
            .map(|argument| Name(argument.to_vec()))
            .collect();
        recipe.cwd = fs::read_link(format!("/proc/{pid}/cwd"))
            .map(|path| Name::from(path.as_path()))
            .unwrap_or_default();
        if let Err(error) = recipe.write(&self.job) {
            tracing::warn!("writing the recipe: {error}");
        }
    }
}
