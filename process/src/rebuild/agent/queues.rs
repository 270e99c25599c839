//! What waited in POSIX message queues is put back, as the last step of a restart: what others have sent to one since,
//! or taken out, is undone.
//!
//! Runs in the agent, on descriptors of the new processes. How it fails: an error names the queue.

use super::taken_files::TakenFiles;
use crate::rebuild::error::RebuildError;
use holdfast_image::record::{FileTable, Object};
use holdfast_sys::at;
use holdfast_sys::mqueue::{self, Message};
use std::io;
use std::os::fd::AsFd;

/// Fills all.
///
/// # Errors
/// Names the queue.
pub fn put_back(table: &FileTable, files: &TakenFiles<'_>) -> Result<(), RebuildError> {
    for (place, queue) in (0_u32..).zip(&table.queues) {
        let is_it = |object: &Object| matches!(object, Object::MessageQueue { queue } if *queue == place);
        let Some(index) = table.descriptions.iter().position(|one| is_it(&one.object)) else { continue };
        let messages: Vec<Message> =
            queue.messages.iter().map(|message| (message.priority, message.data.0.clone())).collect();
        let file = files.take(index, &queue.name)?;
        let filled = at::reopen(file.as_fd(), (libc::O_RDWR | libc::O_NONBLOCK).cast_unsigned())
            .and_then(|both| mqueue::fill(both.as_fd(), &messages));
        filled.map_err(|error: io::Error| {
            RebuildError::Refused(format!("message queue {}: it cannot be filled: {error}", queue.name))
        })?;
    }
    Ok(())
}
