//! What a rollback of a job is to do, made of what there is now and of what the image has.
//!
//! Pure, but for what [`super::compare`] and [`super::objects`] look at.

use super::compare;
use super::mappings::{self, Layout};
use super::objects;
use crate::job::target::Target;
use crate::rebuild::renamed;
use holdfast_image::Epoch;
use holdfast_image::page_set::PageSet;
use holdfast_image::record::ProcessRecord;
use holdfast_image::refusal::Refusal;

/// What is there of one process now, and what is to become of its memory.
#[derive(Debug)]
pub(super) struct Member {
    /// Its id as the agent sees it.
    pub pid: i32,
    /// Number of its address space.
    pub space: u32,
    /// Its record of now, without those of others.
    pub now: ProcessRecord,
    /// What is not mapped as it was.
    pub layout: Layout,
}

/// What a rollback of a job is to do: it can be done.
#[derive(Debug)]
pub struct Plan {
    /// The image's record.
    pub(super) then: ProcessRecord,
    /// In the order of its processes.
    pub(super) members: Vec<Member>,
    /// Memory that a restart has mapped from the store may be anywhere: pages of it cannot be given back.
    pub(super) mapped_from_store: bool,
}

/// The pages of a held job, at global addresses.
#[derive(Debug, Default)]
pub struct Held {
    /// All that there are.
    pub present: PageSet,
    /// Those of them that are what they were in the newest image.
    pub unchanged: PageSet,
    /// A restart has mapped memory from the store.
    pub mapped_from_store: bool,
}

impl Plan {
    /// Compares a job that is held, as `now` and `targets` say, with an image of it.
    ///
    /// # Errors
    /// Everything that cannot be put back.
    pub fn new(
        (now, targets): (&ProcessRecord, &[Target]),
        then: &ProcessRecord,
        epoch: Epoch,
        held: &Held,
    ) -> Result<Plan, Vec<Refusal>> {
        let mut then = then.clone();
        renamed::leave_what_is_there(&mut then.files);
        let pairs = compare::processes((now, targets), &then, epoch)?;
        let mut refusals = objects::obstacles(now, &then, &pairs);
        let mut members = Vec::with_capacity(pairs.len());
        for pair in &pairs {
            let mut found = compare::process(pair, epoch);
            let layout = mappings::layout(pair, (&now.files, &then.files)).unwrap_or_else(|more| {
                found.extend(more);
                Layout::default()
            });
            refusals.extend(found.into_iter().map(|refusal| pair.named(refusal, pairs.len() > 1)));
            let now = ProcessRecord { others: Vec::new(), ..pair.now.clone() };
            members.push(Member { pid: pair.pid, space: pair.now.space, now, layout });
        }
        if refusals.is_empty() {
            Ok(Plan { then, members, mapped_from_store: held.mapped_from_store })
        } else {
            Err(refusals)
        }
    }
}
