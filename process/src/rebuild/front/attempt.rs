//! One way to the old ids: what it gets, and what comes of it.

use super::ids::Ids;
use crate::rebuild::new_process::child::NewProcess;
use crate::rebuild::new_process::front_terminal::FrontTerminal;
use holdfast_image::record::ProcessRecord;
use std::os::fd::OwnedFd;

/// What came of one way.
pub enum Attempt {
    /// The process exists (or is said to): its report follows.
    Begun {
        /// Id of the process, where the front is its parent; else of the helper.
        child: i32,
        /// Where the helper tells the program's end.
        status: Option<OwnedFd>,
        /// What the user should know of it.
        note: Option<String>,
    },
    /// This way is not open here.
    Refused(String),
}

/// Everything that the ways have in common.
pub struct Parts<'a> {
    pub record: &'a ProcessRecord,
    pub agent: OwnedFd,
    /// See [`super::spawn::SpawnOptions::served`].
    pub served: Option<OwnedFd>,
    pub terminal: FrontTerminal,
}

impl Parts<'_> {
    /// Goes on as the new process.
    pub fn become_new_process(self, report: OwnedFd, ids: Ids, own_user_namespace: bool) -> ! {
        let Parts { record, agent, served, terminal } = self;
        NewProcess { record, agent, report, served, terminal, ids, own_user_namespace }.run()
    }
}
