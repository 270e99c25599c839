//! The store: jobs, images, segments, the pipeline that fills them, verification.
//!
//! * [`Store`], [`Job`], [`JobLock`]: folders, names, who may write.
//! * [`ImageWriter`]: pages of a [`holdfast_image::pages::PageSource`] into segments, then the commit.
//! * [`Lineage`]: what the next image, an increment, needs of the one before.
//! * [`Image`]: an image opened for restart; a [`holdfast_image::pages::PageProvider`].
//! * [`tier`]: the door to what keeps the bytes: one trait, a module for each kind of tier.
//! * [`layer`]: tiers around tiers: a bound, opened on demand.
//! * [`stack`]: several tiers: committed versions move down by themselves.
//! * [`hygiene`]: verification and repair on any tier.
//! * [`redundancy`]: what the hosts of a gang keep of each other's images.
//! * [`codec`]: how frames are packed, and which codec is worth it.
//! * [`format`]: the bytes, as in `docs/format.md`.
//!
//! Runs in the agent and the commands, never in the program. It knows nothing of what it stores: the agent joins it
//! with that through the two traits of `holdfast_image::pages`.
//! Invariants: a committed image is never changed; what is read is checked before it is computed with.

// Its unit tests share files with those of tests/, which use its name.
#[cfg(test)]
extern crate self as holdfast_tiers;

mod assemble;
mod buffer;
mod catalog;
mod clone_image;
pub mod codec;
mod common;
mod compact;
mod dedup;
mod error;
mod fault;
mod files;
pub mod format;
mod gather;
mod hashes;
pub mod hygiene;
mod image;
mod image_group;
mod image_info;
mod job;
pub mod layer;
mod lineage;
mod link;
mod link_meter;
mod locations;
mod lock;
mod names;
mod piece_cache;
mod pipeline;
pub mod policy;
mod prepacked;
mod profiles;
mod read;
mod read_ahead;
pub mod redundancy;
mod segment_file;
mod segment_writer;
mod served_pages;
mod share;
mod shared_pages;
pub mod stack;
mod store;
mod tables;
#[cfg(test)]
mod testing;
mod throttle;
pub mod tier;
mod tier_folder;
pub mod trust;
mod unpacked;
mod workers;
mod writer;
mod writing;

pub use error::StoreError;
pub use fault::{HYGIENE_POINTS, POINTS as FAULT_POINTS, REBUILD_POINTS, STACK_POINTS, set_fault_hook};
pub use format::manifest::Record;
pub use image::{FramesOf, Image};
pub use image_group::ImageGroup;
pub use image_info::ImageInfo;
pub use job::{CleanReport, Job, JobLock};
pub use lineage::Lineage;
pub use pipeline::PipelineOptions;
pub use profiles::{KnownRun, MOST_SAMPLES};
pub use share::{Claim, Share};
pub use store::{Store, parse_rank, rank_name};
pub use throttle::ByteClock;
pub use tier::MemoryFirst;
pub use tier_folder::TierFolder;
pub use writer::{CommitRecord, ImageWriter};
