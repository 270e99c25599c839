//! A tier that fails when a test wants it to: at a call, at every call, as if its user had died.
//!
//! Every call is an *operation* with a number; several tiers may share one [`Faults`], and with it the numbers, so that
//! a test can count the operations of a run and then have it fail at each of them: no boundary is left out.
//! To enumerate deaths: run once with [`Faults::none`], then for each n below [`Faults::operations`] with
//! [`Faults::stop_at`] over a new [`super::Model`], which afterwards is what a dead agent has left, and
//! [`super::Model::after_power_cut`] what a dead host has.
//! Invariants: the same run meets the same faults, if it makes its calls in the same order; what was stopped changes
//! nothing any more, not even by dropping what it had open.

use super::model::mix;
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Listing, Tier, TierError, TierInfo};
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// What is called. The last three are calls of writers and blobs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names of the calls
pub enum Call {
    List,
    Open,
    Create,
    Publish,
    Remove,
    Clean,
    Append,
    Finish,
    Read,
}

/// One call, before it is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Counts from 0.
    pub number: u64,
    /// What is called.
    pub call: Call,
    /// Name of the tier, and of the blob or folder.
    pub object: String,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is not made, and fails with the error of this function, which is told the object.
    Fail(fn(String) -> TierError),
    /// It is made, and fails all the same: the answer was lost.
    LoseAnswer(fn(String) -> TierError),
    /// It is made so much later.
    Delay(Duration),
    /// Only so many of its bytes are appended (or read), then it fails. Of a blob that is published, none.
    Tear(usize),
    /// Neither this nor any later operation is made.
    Stop,
}

type Plan = Box<dyn FnMut(&Operation) -> Option<Fault> + Send>;

struct Inner {
    plan: Plan,
    log: Vec<Operation>,
    stopped: bool,
}

/// Which operations fail, and which there were. A clone is the same.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Inner>>);

impl Faults {
    /// What `plan` says of each operation.
    pub fn new(plan: impl FnMut(&Operation) -> Option<Fault> + Send + 'static) -> Faults {
        Faults(Arc::new(Mutex::new(Inner { plan: Box::new(plan), log: Vec::new(), stopped: false })))
    }

    /// No faults: counts.
    pub fn none() -> Faults {
        Faults::new(|_| None)
    }

    /// One fault, at one operation.
    pub fn once(number: u64, fault: Fault) -> Faults {
        Faults::new(move |operation| (operation.number == number).then_some(fault))
    }

    /// The user of the tiers dies before this operation.
    pub fn stop_at(number: u64) -> Faults {
        Faults::once(number, Fault::Stop)
    }

    /// One of `one_in` operations has the fault; which, the seed decides.
    pub fn random(seed: u64, one_in: u64, fault: Fault) -> Faults {
        Faults::new(move |operation| {
            mix(seed, operation.number).is_multiple_of(one_in.max(1)).then_some(fault)
        })
    }

    /// Another plan from now on (a tier that is down is up again).
    pub fn set(&self, plan: impl FnMut(&Operation) -> Option<Fault> + Send + 'static) {
        self.0.lock().plan = Box::new(plan);
    }

    /// How many operations there were, those that failed included; none after a [`Fault::Stop`] counts.
    pub fn operations(&self) -> u64 {
        self.0.lock().log.len() as u64
    }

    /// All operations so far.
    pub fn log(&self) -> Vec<Operation> {
        self.0.lock().log.clone()
    }

    /// Whether there was a [`Fault::Stop`].
    pub fn stopped(&self) -> bool {
        self.0.lock().stopped
    }

    /// Takes note of an operation, and says what happens to it.
    fn meet(&self, call: Call, object: &str) -> Met {
        let mut inner = self.0.lock();
        if inner.stopped {
            return Met::Fails(stopped(object));
        }
        let operation = Operation { number: inner.log.len() as u64, call, object: object.to_owned() };
        let fault = (inner.plan)(&operation);
        inner.log.push(operation);
        match fault {
            None => Met::Works,
            Some(Fault::Delay(time)) => {
                drop(inner);
                std::thread::sleep(time);
                Met::Works
            }
            Some(Fault::Fail(error)) => Met::Fails(error(object.to_owned())),
            Some(Fault::LoseAnswer(error)) => Met::WorksUnknown(error(object.to_owned())),
            Some(Fault::Tear(bytes)) => Met::Tears(bytes, unavailable(object, "a fault of a test")),
            Some(Fault::Stop) => {
                inner.stopped = true;
                Met::Fails(stopped(object))
            }
        }
    }

    /// Makes a call that has no bytes.
    fn call<T>(
        &self,
        call: Call,
        object: &str,
        make: impl FnOnce() -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        match self.meet(call, object) {
            Met::Works => make(),
            Met::WorksUnknown(error) => make().and(Err(error)),
            Met::Fails(error) | Met::Tears(_, error) => Err(error),
        }
    }
}

/// What happens to one operation.
enum Met {
    Works,
    /// The operation is made; the error is the answer.
    WorksUnknown(TierError),
    Fails(TierError),
    Tears(usize, TierError),
}

fn unavailable(object: &str, why: &str) -> TierError {
    TierError::Unavailable { object: object.to_owned(), why: why.to_owned() }
}

fn stopped(object: &str) -> TierError {
    unavailable(object, "its user has ended, says a test")
}

/// See the head of the file.
pub struct Faulty {
    below: Box<dyn Tier>,
    faults: Faults,
}

impl Faulty {
    /// `below`, with faults.
    pub fn new(below: Box<dyn Tier>, faults: Faults) -> Faulty {
        Faulty { below, faults }
    }

    fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.below.info().name)
    }

    fn call<T>(
        &self,
        call: Call,
        name: &str,
        make: impl FnOnce() -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        self.faults.call(call, &self.object(name), make)
    }
}

impl Tier for Faulty {
    fn info(&self) -> &TierInfo {
        self.below.info()
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.call(Call::List, folder, || self.below.list(folder))
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        let below = self.call(Call::Open, name.as_str(), || self.below.open(name))?;
        Ok(Box::new(FaultyBlob { below, object: self.object(name.as_str()), faults: self.faults.clone() }))
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let below = self.call(Call::Create, name.as_str(), || self.below.create(name, expected))?;
        let object = self.object(name.as_str());
        Ok(Box::new(FaultyWriter { below: Some(below), object, faults: self.faults.clone() }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.call(Call::Publish, name.as_str(), || self.below.publish(name, bytes))
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.call(Call::Remove, name.as_str(), || self.below.remove(name))
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.call(Call::Clean, folder, || self.below.clean(folder))
    }
}

struct FaultyBlob {
    below: Box<dyn Blob>,
    object: String,
    faults: Faults,
}

impl Blob for FaultyBlob {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        match self.faults.meet(Call::Read, &self.object) {
            Met::Works => self.below.read_at(offset, buffer),
            Met::WorksUnknown(error) => self.below.read_at(offset, buffer).and(Err(error)),
            Met::Fails(error) => Err(error),
            Met::Tears(bytes, error) => {
                let bytes = bytes.min(buffer.len());
                self.below.read_at(offset, &mut buffer[..bytes]).and(Err(error))
            }
        }
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        self.below.mapping()
    }
}

struct FaultyWriter {
    /// None: it is finished.
    below: Option<Box<dyn BlobWriter>>,
    object: String,
    faults: Faults,
}

impl BlobWriter for FaultyWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let met = self.faults.meet(Call::Append, &self.object);
        let Some(below) = &mut self.below else { return Err(stopped(&self.object)) };
        match met {
            Met::Works => below.append(bytes),
            Met::WorksUnknown(error) => below.append(bytes).and(Err(error)),
            Met::Fails(error) => Err(error),
            Met::Tears(torn, error) => below.append(&bytes[..torn.min(bytes.len())]).and(Err(error)),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<u64, TierError> {
        let faults = self.faults.clone();
        let object = self.object.clone();
        faults.call(Call::Finish, &object, || match self.below.take() {
            Some(below) => below.finish(),
            None => Err(stopped(&object)),
        })
    }
}

impl Drop for FaultyWriter {
    fn drop(&mut self) {
        if self.faults.stopped()
            && let Some(below) = self.below.take()
        {
            // Who is dead drops nothing: what it has left unfinished must stay.
            std::mem::forget(below);
        }
    }
}
