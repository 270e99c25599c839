//! Puts work on a stream: in its queue, or into the graph that the stream is captured into. Used by `api`.

use std::sync::Arc;

use crate::capture;
use crate::code::Answer;
use crate::command::Command;
use crate::context::{self, Context};
use crate::stream::{Point, Stream};

/// A stream that work can be put on.
pub struct Target {
    /// Of the stream.
    pub context: Arc<Context>,
    /// The stream.
    pub stream: Arc<Stream>,
}

/// The stream of a handle.
pub fn target(handle: usize) -> Answer<Target> {
    let (context, stream) = context::stream(handle)?;
    capture::check_implicit(&context, &stream)?;
    Ok(Target { context, stream })
}

impl Target {
    /// It is being captured: nothing runs before its graph is launched.
    pub fn is_captured(&self) -> bool {
        capture::is_active(&self.stream)
    }

    /// Puts work on it; nothing to wait for where it is captured.
    pub fn put(&self, command: Command) -> Answer<Option<Point>> {
        if capture::add(&self.stream, &command)? {
            return Ok(None);
        }
        self.context.submit(&self.stream, Vec::new(), command).map(Some)
    }

    /// The same for work that the host waits for, which cannot be captured.
    pub fn run(&self, command: Command) -> Answer {
        capture::forbid(&self.stream)?;
        self.context.submit(&self.stream, Vec::new(), command)?.wait();
        self.context.check()
    }

    /// Waits for what is on it.
    pub fn wait(&self) -> Answer {
        capture::forbid(&self.stream)?;
        self.stream.last().wait();
        self.context.check()
    }
}
