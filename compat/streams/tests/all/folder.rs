//! What these tests share: a folder with a log, and what that is like.

use holdfast_streams::layout::PAGE;
use holdfast_streams::place::Place;
use holdfast_streams::writer::{Changed, Options, Source};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of the ring.
pub const CAPACITY: u64 = 48 * PAGE;

/// A folder that goes with it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Folder(std::env::temp_dir().join(format!("holdfast-streams-test-{}-{number}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn place(&self) -> Place {
        Place::parse("sim/0", &self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn options() -> Options {
    Options { capacity: CAPACITY, wait: Duration::ZERO, keep: false }
}

/// One object, of which all has changed.
pub fn whole<'a>(key: &'a str, bytes: &'a [u8]) -> [Source<'a>; 1] {
    [Source { key, bytes, changed: Changed::All }]
}
