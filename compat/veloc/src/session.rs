//! What VELOC_Init opens: a client for each name of checkpoints, registered memory, a checkpoint or restart under way.
//!
//! A name is a set of objects with a rank for each of the communicator's; its regions are objects by their ids, its
//! files by their names. On several hosts, whose servers do not know each other, each rank is a set of its own; that a
//! version is there for all is found out over MPI.
//!
//! # Safety
//! Memory is registered by address. Who registers it says with that, as `veloc.h` demands, that it stays until it is
//! unregistered, and that no other thread writes to it while it is copied. Slices of it are made for one copy, and
//! never of a null pointer.
#![allow(unsafe_code)]

use crate::config::Config;
use crate::mpi::Mpi;
use crate::routed::Routed;
use holdfast_objects::buffer::Object;
use holdfast_objects::client::{Client, ClientOptions, Error};
use holdfast_objects::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::path::PathBuf;

/// Registered memory.
#[derive(Clone, Copy, Debug)]
struct Region {
    memory: usize,
    bytes: usize,
    element: usize,
}

/// A checkpoint or restart under way.
#[derive(Debug)]
struct UnderWay {
    name: String,
    routed: Routed,
}

/// Which regions.
#[derive(Debug)]
pub enum Which {
    /// All.
    All,
    /// Those of these ids.
    Some(BTreeSet<i32>),
    /// All but those.
    Rest(BTreeSet<i32>),
}

impl Which {
    fn has(&self, id: i32) -> bool {
        match self {
            Which::All => true,
            Which::Some(ids) => ids.contains(&id),
            Which::Rest(ids) => !ids.contains(&id),
        }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct Session {
    config: Config,
    mpi: Option<Mpi>,
    /// Of VELOC_Init_single.
    id: u32,
    is_one_host: bool,
    sets: BTreeMap<String, Client>,
    /// By name of the checkpoints that it is for; "": all others.
    regions: BTreeMap<String, BTreeMap<i32, Region>>,
    checkpoint: Option<UnderWay>,
    restart: Option<UnderWay>,
}

fn state(text: &str) -> Error {
    Error::State(text.to_owned())
}

fn mpi_failed(why: String) -> Error {
    Error::State(why)
}

impl Session {
    /// Of a configuration, and a communicator or an id.
    ///
    /// # Errors
    /// There is no configuration, for this rank or another one; MPI fails.
    pub fn new(config: Result<Config, Error>, mpi: Option<Mpi>, id: u32) -> Result<Session, Error> {
        let all =
            mpi.as_ref().map_or(Ok(1), |mpi| mpi.smallest(config.is_ok().into())).map_err(mpi_failed)?;
        let config = config?;
        if all == 0 {
            return Err(state("another rank cannot read its configuration"));
        }
        let is_one_host = mpi.as_ref().map_or(Ok(true), Mpi::is_one_host).map_err(mpi_failed)?;
        let regions = BTreeMap::new();
        let sets = BTreeMap::new();
        Ok(Session { config, mpi, id, is_one_host, sets, regions, checkpoint: None, restart: None })
    }

    /// What messages call this process.
    pub fn rank(&self) -> u32 {
        self.mpi.as_ref().map_or(self.id, |mpi| mpi.rank)
    }

    /// What has no effect, for the rank that says so.
    pub fn notes(&self) -> &[String] {
        if self.rank() == 0 || self.mpi.is_none() { &self.config.notes } else { &[] }
    }

    /// All ranks' smallest number.
    fn smallest(&self, number: i32) -> Result<i32, Error> {
        self.mpi.as_ref().map_or(Ok(number), |mpi| mpi.smallest(number)).map_err(mpi_failed)
    }

    /// Registers memory, in place of what had this id.
    ///
    /// # Errors
    /// A null pointer; more bytes than there are.
    ///
    /// # Safety
    /// The memory is there until it is unregistered.
    pub unsafe fn protect(
        &mut self,
        id: i32,
        memory: *mut c_void,
        count: usize,
        element: usize,
        name: &str,
    ) -> Result<(), Error> {
        let bytes = count.checked_mul(element).filter(|bytes| *bytes <= isize::MAX.cast_unsigned());
        let bytes = bytes.filter(|bytes| *bytes == 0 || !memory.is_null()).ok_or_else(|| {
            Error::Argument(format!(
                "memory {id}: {count} elements of {element} bytes at {memory:p} cannot be"
            ))
        })?;
        let region = Region { memory: memory as usize, bytes, element: element.max(1) };
        self.regions.entry(name.to_owned()).or_default().insert(id, region);
        Ok(())
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// There is none.
    pub fn unprotect(&mut self, id: i32, name: &str) -> Result<(), Error> {
        let removed = self.regions.get_mut(name).and_then(|group| group.remove(&id));
        removed.map(|_| ()).ok_or_else(|| Error::Argument(format!("memory {id} is not registered")))
    }

    /// Ends all registrations of a name.
    pub fn clear(&mut self, name: &str) {
        self.regions.remove(name);
    }

    /// The memory of checkpoints of this name.
    fn group(&self, name: &str) -> BTreeMap<i32, Region> {
        let own = self.regions.get(name).filter(|group| !group.is_empty());
        own.or_else(|| self.regions.get("")).cloned().unwrap_or_default()
    }

    /// The client of a name.
    fn client(&mut self, name: &str) -> Result<&mut Client, Error> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_');
        if name.is_empty() || !name.bytes().all(allowed) {
            let why =
                format!("\"{name}\" cannot be the name of checkpoints: letters, digits, '_' and '.' can");
            return Err(Error::Argument(why));
        }
        if !self.sets.contains_key(name) {
            let (set, rank, ranks) = match &self.mpi {
                Some(mpi) if self.is_one_host => (name.to_owned(), mpi.rank, mpi.ranks),
                Some(mpi) => (format!("{name}-rank{}", mpi.rank), 0, 1),
                None => (format!("{name}-{}", self.id), 0, 1),
            };
            let options = ClientOptions {
                store: self.config.scratch.clone(),
                set,
                rank,
                ranks,
                tiers: self.config.tiers(),
                keep: self.config.keep(),
                holdfast: None,
            };
            self.sets.insert(name.to_owned(), Client::open(options)?);
        }
        self.sets.get_mut(name).ok_or_else(|| state("no client"))
    }

    fn files(&self, name: &str) -> PathBuf {
        wire::folder(&self.config.scratch).join(".files").join(format!("{name}-{}", self.rank()))
    }

    /// VELOC_Checkpoint_begin.
    ///
    /// # Errors
    /// One is under way; as [`Client::begin`].
    pub fn checkpoint_begin(&mut self, name: &str, version: u64) -> Result<(), Error> {
        if let Some(other) = &self.checkpoint {
            let name = &other.name;
            return Err(Error::State(format!(
                "a checkpoint of {name} is under way: it has to be ended before"
            )));
        }
        self.restart_end()?;
        let object = |(id, region): (i32, Region)| Object {
            key: id.to_string(),
            bytes: region.bytes as u64,
            element: region.element as u64,
        };
        let planned: Vec<Object> = self.group(name).into_iter().map(object).collect();
        self.client(name)?.begin(version, &planned)?;
        let routed = Routed::new(self.files(name));
        self.checkpoint = Some(UnderWay { name: name.to_owned(), routed });
        Ok(())
    }

    fn under_way(&self) -> Result<String, Error> {
        let name = self.checkpoint.as_ref().map(|checkpoint| checkpoint.name.clone());
        name.ok_or_else(|| state("no checkpoint is under way: VELOC_Checkpoint_begin comes before"))
    }

    /// VELOC_Checkpoint_selective.
    ///
    /// # Errors
    /// No checkpoint is under way; no memory is chosen; as [`Client::add`].
    pub fn checkpoint_memory(&mut self, which: &Which) -> Result<(), Error> {
        let name = self.under_way()?;
        let chosen: Vec<(i32, Region)> =
            self.group(&name).into_iter().filter(|(id, _)| which.has(*id)).collect();
        if chosen.is_empty() {
            return Err(Error::Argument(format!(
                "no memory is registered for {name}, or none of the chosen ids"
            )));
        }
        let client = self.client(&name)?;
        chosen.into_iter().try_for_each(|(id, region)| {
            let bytes = match region.bytes {
                0 => &[],
                // SAFETY: the registration's promise; no reference to it is kept.
                bytes => unsafe { std::slice::from_raw_parts(region.memory as *const u8, bytes) },
            };
            client.add(&id.to_string(), bytes, region.element as u64)
        })
    }

    /// VELOC_Checkpoint_end.
    ///
    /// # Errors
    /// No checkpoint is under way; a file was not written; as [`Client::end`]; in mode sync: it is not on disk.
    pub fn checkpoint_end(&mut self, success: bool) -> Result<(), Error> {
        self.under_way()?;
        let Some(UnderWay { name, routed }) = self.checkpoint.take() else { return Ok(()) };
        let is_sync = self.config.is_sync;
        let client = self.client(&name)?;
        if !success {
            return client.abandon();
        }
        if let Err(error) = routed.put(client) {
            // The first error is the one that counts.
            let _ = client.abandon();
            return Err(error);
        }
        client.end()?;
        if is_sync { client.wait() } else { Ok(()) }
    }

    /// VELOC_Checkpoint.
    ///
    /// # Errors
    /// As its parts; one that was put earlier could not be stored.
    pub fn checkpoint(&mut self, name: &str, version: u64) -> Result<(), Error> {
        // What was put is safe from a death of this process: only what has failed meanwhile is asked for.
        if self.is_finished()? {
            self.wait()?;
        }
        self.checkpoint_begin(name, version)?;
        if let Err(error) = self.checkpoint_memory(&Which::All) {
            let _ = self.checkpoint_end(false);
            return Err(error);
        }
        self.checkpoint_end(true)
    }

    /// VELOC_Checkpoint_wait.
    ///
    /// # Errors
    /// A checkpoint is under way; one is not on disk.
    pub fn wait(&mut self) -> Result<(), Error> {
        if self.checkpoint.is_some() {
            return Err(state("a checkpoint is under way: it has to be ended before it is waited for"));
        }
        // All are waited for, also where one has failed.
        let done: Vec<Result<(), Error>> = self.sets.values_mut().map(Client::wait).collect();
        done.into_iter().collect()
    }

    /// VELOC_Checkpoint_finished.
    ///
    /// # Errors
    /// No server.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        let mut all = true;
        for client in self.sets.values_mut() {
            all &= client.is_finished()?;
        }
        Ok(all)
    }

    /// VELOC_Restart_test: the newest version below this one that all ranks have.
    ///
    /// # Errors
    /// No server; MPI fails. All ranks get an error then.
    pub fn restart_test(&mut self, name: &str, below: Option<u64>) -> Result<Option<u64>, Error> {
        let mut below = below;
        loop {
            let newest = self.client(name).and_then(|client| client.newest(below));
            let (own, failed) = match newest {
                Ok(version) => (version.and_then(|version| i32::try_from(version).ok()).unwrap_or(-1), None),
                Err(error) => (-2, Some(error)),
            };
            let least = self.smallest(own)?;
            if let Some(error) = failed {
                return Err(error);
            }
            if least < -1 {
                return Err(state("another rank cannot say which versions there are"));
            }
            let Ok(candidate) = u64::try_from(least) else { return Ok(None) };
            // Ranks whose newest one is another may have it, or not.
            let has = self.client(name)?.newest(Some(candidate + 1)).is_ok_and(|own| own == Some(candidate));
            if self.smallest(has.into())? == 1 {
                return Ok(Some(candidate));
            }
            below = Some(candidate);
        }
    }

    /// VELOC_Restart_begin.
    ///
    /// # Errors
    /// As [`Client::restore`], for this rank or another one.
    pub fn restart_begin(&mut self, name: &str, version: u64) -> Result<(), Error> {
        self.restart = None;
        let own = match self.checkpoint {
            Some(_) => Err(state("a checkpoint is under way: it has to be ended before a restart")),
            None => self.client(name).and_then(|client| client.restore(version)),
        };
        // Whatever this rank's is: the others wait for it.
        let all = self.smallest(own.is_ok().into());
        own?;
        if all? == 0 {
            self.client(name)?.restored()?;
            return Err(Error::Refused(format!("another rank cannot restore version {version} of {name}")));
        }
        let routed = Routed::new(self.files(name));
        self.restart = Some(UnderWay { name: name.to_owned(), routed });
        Ok(())
    }

    fn restarting(&mut self) -> Result<(String, &mut Client), Error> {
        let name = self.restart.as_ref().map(|restart| restart.name.clone());
        let name = name.ok_or_else(|| state("no restart is under way: VELOC_Restart_begin comes before"))?;
        Ok((name.clone(), self.client(&name)?))
    }

    /// VELOC_Recover_selective: all chosen objects of the version, into the memory of their ids.
    ///
    /// # Errors
    /// No restart is under way; an id has no memory, or too little: nothing was copied.
    pub fn recover(&mut self, which: &Which) -> Result<(), Error> {
        let (name, client) = self.restarting()?;
        let objects: Vec<(i32, u64)> = client
            .objects()
            .filter_map(|(key, bytes)| Some((key.parse().ok()?, bytes)))
            .filter(|(id, _)| which.has(*id))
            .collect();
        if objects.is_empty() {
            return Err(Error::Argument(format!("the version of {name} has no memory of the chosen ids")));
        }
        let group = self.group(&name);
        for (id, stored) in &objects {
            let bytes = group.get(id).map(|region| region.bytes as u64);
            if bytes.is_none_or(|bytes| bytes < *stored) {
                let there = bytes.map_or("no memory".to_owned(), |bytes| format!("{bytes} bytes"));
                let why =
                    format!("the version has {stored} bytes of id {id}, for which {there} is registered");
                return Err(Error::Argument(why));
            }
        }
        let (_, client) = self.restarting()?;
        for (id, stored) in objects {
            let memory = group.get(&id).map_or(0, |region| region.memory);
            let bytes: &mut [u8] = match usize::try_from(stored).unwrap_or(0) {
                0 => &mut [],
                // SAFETY: the registration's promise: it has at least so many bytes, as was looked at.
                len => unsafe { std::slice::from_raw_parts_mut(memory as *mut u8, len) },
            };
            client.copy(&id.to_string(), bytes)?;
        }
        Ok(())
    }

    /// VELOC_Recover_size.
    ///
    /// # Errors
    /// No restart is under way.
    pub fn recover_size(&mut self, id: i32) -> Result<Option<u64>, Error> {
        Ok(self.restarting()?.1.size(&id.to_string()))
    }

    /// VELOC_Restart_end; without a restart this does nothing.
    ///
    /// # Errors
    /// No server.
    pub fn restart_end(&mut self) -> Result<(), Error> {
        match self.restart.take() {
            Some(restart) => self.client(&restart.name)?.restored(),
            None => Ok(()),
        }
    }

    /// VELOC_Restart.
    ///
    /// # Errors
    /// As its parts.
    pub fn restart(&mut self, name: &str, version: u64) -> Result<(), Error> {
        self.restart_begin(name, version)?;
        let recovered = self.recover(&Which::All);
        let ended = self.restart_end();
        recovered.and(ended)
    }

    /// VELOC_Route_file.
    ///
    /// # Errors
    /// Neither a checkpoint nor a restart is under way; as [`Routed::route`].
    pub fn route(&mut self, original: &str) -> Result<PathBuf, Error> {
        if let Some(checkpoint) = &mut self.checkpoint {
            return checkpoint.routed.route(original, None);
        }
        let Some(restart) = &mut self.restart else {
            return Err(state("a file is routed between begin and end of a checkpoint or restart"));
        };
        restart.routed.route(original, self.sets.get(&restart.name))
    }

    /// VELOC_Cleanup. Where there is a persistent path nothing goes: as with VELOC, what is there stays; how many
    /// versions stay in scratch is said by scratch_versions.
    ///
    /// # Errors
    /// As [`Client::drop_set`].
    pub fn cleanup(&mut self, name: &str) -> Result<(), Error> {
        if self.config.persistent.is_some() {
            return Ok(());
        }
        self.client(name)?.drop_set()
    }

    /// VELOC_Prefetch_enqueue.
    ///
    /// # Errors
    /// No server.
    pub fn enqueue(&mut self, name: &str, version: u64) -> Result<(), Error> {
        self.client(name)?.hint(version)
    }

    /// VELOC_Prefetch_start.
    ///
    /// # Errors
    /// No server.
    pub fn start(&mut self) -> Result<(), Error> {
        self.sets.values_mut().try_for_each(Client::start)
    }
}
