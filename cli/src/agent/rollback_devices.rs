//! The devices' part of a rollback: the CUDA driver checkpoints the processes that use it, as for an image; with their
//! memory comes the state that the driver had left in it at the image, and the driver restores that, as at a restart.
//!
//! Used by [`super::rollback`]. Device memory that a keeper has stays where it is: what differs from the image's
//! digests is looked for in the keeper's GPU cache, and hashed there; what is not there is read from the image, which
//! checks it; both before anything is changed. Afterwards it is copied on the device, and filled in.
//! Invariants: dropped before [`Devices::finish`], the processes are RUNNING again as they were; a failure in it
//! ends them.

use super::context::JobContext;
use super::cuda::Ready;
use super::kept::{DevicesBack, PutBack, TakenMemory, Taking};
use crate::exit::{Exit, Failure};
use holdfast_image::control::Reply;
use holdfast_image::cuda::CudaRecord;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::ProcessRecord;
use holdfast_process::cuda::Suspended;
use holdfast_process::rebuild::RebuiltMember;
use holdfast_process::{Members, Target, Tracer};
use holdfast_sys::ptrace;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the head of the file.
#[derive(Default)]
pub struct Devices {
    /// What the driver's records say of the processes now; empty: none uses CUDA.
    pub records: BTreeMap<i32, CudaRecord>,
    suspended: Option<Suspended>,
    taken: Option<TakenMemory>,
    back: Option<DevicesBack>,
}

impl Devices {
    /// Has the driver checkpoint all processes that use it.
    ///
    /// # Errors
    /// It cannot; they are RUNNING.
    pub fn suspend(context: &JobContext, members: &Members, tracer: &Tracer) -> Result<Devices, Box<Reply>> {
        let ready = context.cuda.suspend(members, Taking::Nothing, tracer);
        let ready = ready.map_err(|error| Box::new(error.reply()))?;
        let Some(Ready { suspended, records, kept }) = ready else { return Ok(Devices::default()) };
        // A device may have written to pinned memory past all page tables.
        let users = members.targets().iter().filter(|target| records.contains_key(&target.pid));
        users.for_each(|target| target.tracking.doubt());
        Ok(Devices { records, suspended: Some(suspended), taken: kept, back: None })
    }

    /// Compares device memory of a keeper's with the image, and reads what differs. `is_last`: it is the parent of the
    /// next one, and what the keeper knows of that stays right.
    ///
    /// # Errors
    /// In words; nothing is changed.
    pub fn compare(
        &mut self,
        context: &JobContext,
        image: &dyn PageProvider,
        is_last: bool,
    ) -> Result<(), String> {
        if let Some(taken) = self.taken.take() {
            if !is_last {
                context.cuda.goes_back();
            }
            self.back = Some(DevicesBack::compare(taken, image)?);
        }
        Ok(())
    }

    /// The threads run, with the memory of the image: the driver restores what is in it. What went back of a keeper's
    /// memory.
    ///
    /// # Errors
    /// It cannot: the processes are ended.
    pub fn finish(
        mut self,
        context: &JobContext,
        record: &ProcessRecord,
        targets: &[Target],
        image: &dyn PageProvider,
    ) -> Result<PutBack, Failure> {
        let Some(suspended) = self.suspended.take() else { return Ok(PutBack::default()) };
        // What it knows is of another time: gates and memory are those of the image.
        suspended.ending();
        let filled = self.back.take().map_or(Ok(PutBack::default()), |back| back.put_back(image));
        let bytes = filled.map_err(|why| Failure::new(Exit::Internal, why)).and_then(|bytes| {
            context.cuda.gives_room(&targets.iter().map(|target| target.pid).collect::<Vec<_>>());
            context.cuda.prepare(record)?;
            Ok(bytes)
        });
        let bytes = bytes.map_err(|failure| {
            targets.iter().for_each(|target| drop(ptrace::kill(target.pid, libc::SIGKILL)));
            Failure { message: format!("{}; the program was ended", failure.message), ..failure }
        })?;
        let member = |process: &ProcessRecord| {
            let target = targets.iter().find(|target| target.space == process.space)?;
            let (pid, space, area) = (target.pid, target.space, target.area);
            Some(RebuiltMember { pid, space, area, tracking: Arc::clone(&target.tracking) })
        };
        let members: Vec<RebuiltMember> = record.processes().filter_map(member).collect();
        context.cuda.restore(record, &members).map(|()| bytes)
    }

    /// The processes are about to end as they are.
    pub fn ending(self) {
        self.suspended.into_iter().for_each(Suspended::ending);
    }
}
