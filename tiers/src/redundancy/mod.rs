//! Redundancy between the hosts of a gang: what one of them has is rebuilt of what others have.
//!
//! * [`Protection`]: what the user asks for, and which members are a group: never two of one host.
//! * [`Layout`], [`Code`]: which bytes of which member are a stripe; parity of a stripe, and what was lost of it.
//! * [`GroupFile`]: what a set consists of. [`MemberStream`] and the functions beside it: its files in a job's folder.
//!
//! A *set* belongs to an image of the gang. Each member of a group has a *stream*: what its image has that no set
//! before it has, its head (`job.json` and manifest) first. Parity of the streams lies at the members, a part of it at
//! each; it holds as long as all streams are there, so that no segment of a set goes before the set does.
//! Called by the agents and by restarts (`cli/src/gang/guard/`), which move the bytes. Pure but for the files of a job.
//! Invariants: parity is never that of its own member's stream; a set is whole when its parity is there, which is made
//! last; what is read back is checked against sums that were made when parity was. Fails by: words, or an error of the
//! tier.

mod code;
mod files;
mod folder;
mod group_file;
mod head;
mod layout;
mod protection;
mod stream_writer;
#[cfg(test)]
mod tests;

pub use code::{Code, TooMany};
pub use files::{
    MemberStream, Number, ParityWriter, begin_parity, clean_heads, head_manifest, lacks, number_of,
    open_parity, put_group, put_head, put_image, remove_set, sets, tables,
};
pub use folder::{Parity, SetProblem, SetState, covered};
pub(crate) use folder::{check_set, clean, left_over, read_group, sets_in};
pub use group_file::{ChunkSum, GroupFile, GroupMember, SetFile, StripeSums};
pub(crate) use head::check_head;
pub use layout::{Layout, Part, Place};
pub use protection::Protection;
pub use stream_writer::StreamWriter;
