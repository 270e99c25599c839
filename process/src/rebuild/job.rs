//! The processes of a job, and what in the records of all of them concerns one.
//!
//! Used by both halves of a restart. Descriptions are made and kept once for all processes; what is done once for a
//! description is done by its *holder*, the first process that has it. Invariant: the record was checked.

use holdfast_image::record::{Description, ProcessRecord};
use holdfast_image::spare_numbers::{self, SpareNumbers};

/// All processes.
#[derive(Debug)]
pub struct Job<'a> {
    /// The record of the first, with all others in it.
    pub record: &'a ProcessRecord,
    /// Of each description: the index of its holder, and its number there.
    holders: Vec<Option<(usize, i32)>>,
    /// Numbers for descriptors of the restart.
    pub spare: SpareNumbers,
}

impl<'a> Job<'a> {
    /// Of a record that was checked.
    pub fn new(record: &'a ProcessRecord) -> Job<'a> {
        let mut holders = vec![None; record.files.descriptions.len()];
        for (index, process) in record.processes().enumerate() {
            for descriptor in &process.files.descriptors {
                if let Some(holder) = holders.get_mut(descriptor.description as usize) {
                    holder.get_or_insert((index, descriptor.fd));
                }
            }
        }
        Job { record, holders, spare: spare_numbers::of(record) }
    }

    /// All descriptions.
    pub fn descriptions(&self) -> &'a [Description] {
        &self.record.files.descriptions
    }

    /// The holder of a description.
    pub fn holder(&self, description: usize) -> Option<(usize, i32)> {
        self.holders.get(description).copied().flatten()
    }

    /// One process.
    pub fn member(&'a self, index: usize) -> Option<Member<'a>> {
        let own = self.record.processes().nth(index)?;
        Some(Member { job: self, index, own })
    }

    /// All processes, the first one first.
    pub fn members(&'a self) -> impl Iterator<Item = Member<'a>> {
        self.record.processes().enumerate().map(|(index, own)| Member { job: self, index, own })
    }
}

/// One process of a job.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The job.
    pub job: &'a Job<'a>,
    /// 0: the first; n: the n-th of the others.
    pub index: usize,
    /// Its own record.
    pub own: &'a ProcessRecord,
}

impl Member<'_> {
    /// Its number for a description whose holder it is.
    pub fn held(&self, description: usize) -> Option<i32> {
        self.job.holder(description).filter(|(index, _)| *index == self.index).map(|(_, fd)| fd)
    }

    /// The first of its numbers for a description.
    pub fn number(&self, description: usize) -> Option<i32> {
        let mut own = self.own.files.descriptors.iter();
        own.find(|descriptor| descriptor.description as usize == description).map(|descriptor| descriptor.fd)
    }
}
