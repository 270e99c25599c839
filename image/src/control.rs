//! Messages between libholdfast, the agent and the commands: one JSON object per message over `agent.sock`
//! (SOCK_SEQPACKET: message boundaries are kept, one message is at most [`MAX_MESSAGE`] bytes).
//!
//! Both ends check the peer's uid (SO_PEERCRED). A message that cannot be decoded is answered by [`Reply::Error`] and
//! changes nothing. The library's side is written without an allocator and builds its few messages by hand
//! (`preload`); the tests of this module freeze their text.

use crate::Epoch;
use crate::record::InjectArea;
use crate::refusal::Checked;
use serde::{Deserialize, Serialize};

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// A request to the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// From libholdfast, when it was loaded (`event: "load"`), or its process was forked or became a session leader.
    /// A userfaultfd may come with it as SCM_RIGHTS. No reply.
    #[serde(rename = "hello")] // libraries in older images say so
    Register {
        /// "load", "fork" or "setsid".
        event: String,
        /// Version of the library.
        version: String,
        /// Where the agent may work in this process.
        area: InjectArea,
    },
    /// Make an image now.
    Checkpoint {
        /// End the program once the image is committed; it does not run on in between.
        stop: bool,
        /// Answer only when the image is committed (otherwise as soon as the program runs again).
        wait: bool,
        /// What is to be done otherwise than the job's settings say, this time.
        #[serde(default, skip_serializing_if = "Wishes::is_none")]
        wishes: Wishes,
    },
    /// Put the program back into what an image has of it, in place.
    Rollback {
        /// Which; `None`: the newest.
        image: Option<Epoch>,
    },
    /// Go on with other settings.
    Set {
        /// What changes.
        wanted: Wanted,
    },
    /// Delete these images from the store.
    Remove {
        /// Their numbers.
        images: Vec<Epoch>,
    },
    /// What of the program could not be checkpointed now? It runs on undisturbed.
    Check,
    /// How are things?
    Status,
    /// Try again now what could not be copied to a lower tier.
    Sync,
    /// End the agent; the program goes on without it.
    Quit,
    /// From `holdfast rsh`, in a gang that others are added to: where is the server on that host? It is started there
    /// if there is none.
    Remote {
        /// The host, in the words of ssh.
        host: String,
        /// What ssh is told besides.
        options: Vec<String>,
    },
    /// From the server of a member that was added: it listens, and wants the key.
    Serves {
        /// Its TCP port.
        port: u16,
    },
    /// From the C API: ranges of protected memory were added or removed.
    Protect {
        /// Identifier given by the program.
        name: String,
        /// First byte.
        start: u64,
        /// Length, bytes; 0 removes the range.
        len: u64,
    },
}

/// What none but members of a gang may know: not shown by logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a key)")
    }
}

/// How one checkpoint is to differ from the settings of its job, in the words of the command line.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wishes {
    /// `--engine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// `--order`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// `--cow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cow: Option<String>,
    /// `--compress`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<String>,
    /// `--outside`, once `--tcp`.
    #[serde(default, rename = "tcp", skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
    /// What the process that has asked is to get if the checkpoint fails: the signal at which it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// How a job is to go on, each only if it changes; 0 and an empty text are none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wanted {
    /// `--every`, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// `--keep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
    /// `--keep-daily`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_daily: Option<u64>,
    /// `--rate`, bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// `--signal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// `--on`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<i32>,
    /// `--exec-after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_after: Option<String>,
    /// The rest.
    #[serde(skip_serializing_if = "Wishes::is_none")]
    pub wishes: Wishes,
}

impl Wishes {
    /// Whether the settings of the job hold as they are.
    pub fn is_none(&self) -> bool {
        *self == Wishes::default()
    }
}

/// The agent's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The request was carried out.
    Ok,
    /// A checkpoint was taken (or its cut was, when not waited for).
    Checkpointed {
        /// The image's number.
        epoch: Epoch,
        /// Stop time, nanoseconds.
        stop_ns: u64,
        /// Whether the image is committed already.
        committed: bool,
        /// The image of the gang that it is a part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gang_image: Option<u64>,
    },
    /// The program goes on from an image, in its own processes.
    RolledBack(RolledBack),
    /// State of the job.
    Status(JobStatus),
    /// What a look at the program found.
    Checked(Checked),
    /// Images were deleted.
    Removed {
        /// Bytes that this made free.
        freed: u64,
        /// Those that stay, and why.
        stays: Vec<(Epoch, String)>,
    },
    /// Where the server of a host is.
    Remote {
        /// Its address and TCP port.
        at: String,
        /// What both prove.
        key: Secret,
    },
    /// The key of the gang's servers.
    Key {
        /// It.
        key: Secret,
    },
    /// The checkpoint could not be taken because of objects that are not supported.
    Refused {
        /// One line per object.
        reasons: Vec<String>,
    },
    /// There is no program that could be checkpointed.
    NoProgram {
        /// It has not begun, or is about to be another one: there will be one in a moment. Else it has ended.
        awaited: bool,
    },
    /// There is no such image.
    NoImage {
        /// Which, and what there is.
        message: String,
    },
    /// The image is damaged.
    BadImage {
        /// Where, and what to do.
        message: String,
    },
    /// There is no space for the image.
    Full {
        /// Where, and what to do.
        message: String,
    },
    /// It failed.
    Error {
        /// What, on what, and what to do.
        message: String,
    },
}

/// What a rollback has done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RolledBack {
    /// The image that the program goes on from.
    pub epoch: Epoch,
    /// How long the program was stopped, nanoseconds.
    pub stop_ns: u64,
    /// Bytes of memory that the image has.
    pub image_bytes: u64,
    /// Bytes of it that were compared with the image, because they may have changed.
    pub compared_bytes: u64,
    /// Bytes that were put back.
    pub written_bytes: u64,
    /// Bytes of device memory that were put back.
    #[serde(default)]
    pub device_bytes: u64,
    /// Of these, bytes that a keeper's GPU cache had; the store had the others.
    #[serde(default)]
    pub device_cached_bytes: u64,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
}

/// State of a running job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// Name of the job.
    pub job: String,
    /// Pid of the program as seen from the agent; `None` before it has registered.
    pub pid: Option<i32>,
    /// Pid of the agent.
    pub agent_pid: i32,
    /// Number of the newest committed image.
    pub newest: Option<Epoch>,
    /// A flush is under way for this image.
    pub flushing: Option<Epoch>,
    /// Bytes stored so far by that flush.
    pub flushed_bytes: u64,
    /// Bytes that it has to read.
    pub flush_total_bytes: u64,
    /// The checkpoint that is under way.
    #[serde(default)]
    pub under_way: Option<UnderWay>,
    /// Last failure, if the last checkpoint failed.
    pub last_error: Option<String>,
    /// The lower tiers, the fastest first.
    #[serde(default)]
    pub tiers: Vec<TierStatus>,
    /// Something is being copied to one of them, or will be at once.
    #[serde(default)]
    pub tiers_busy: bool,
    /// The program has ended, and the agent is there for the tiers only.
    #[serde(default)]
    pub lingering: bool,
}

/// A checkpoint that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnderWay {
    /// Number of the image.
    pub image: Epoch,
    /// What is being done.
    pub step: Step,
    /// Bytes that this step is done with.
    pub done_bytes: u64,
    /// All that it has to do, as far as is known by now; 0: it has no bytes.
    pub total_bytes: u64,
}

/// The steps of a checkpoint that take time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The program runs, and what it does not write any more is stored.
    Precopy,
    /// The program is about to be stopped, or is stopped.
    Stop,
    /// It runs again, and what the cut found is stored.
    Flush,
    /// All is stored, and is made durable.
    Commit,
}

/// State of a lower tier of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TierStatus {
    /// Its address.
    pub tier: String,
    /// The newest image that it has.
    pub newest: Option<Epoch>,
    /// Number of images that it is to get and has not got.
    pub waiting: u64,
    /// What is being copied to it.
    pub copying: Option<CopyStatus>,
    /// The last failure, until it is over.
    pub error: Option<String>,
    /// In how many milliseconds it is tried again.
    pub again_ms: Option<u64>,
    /// Why it is only read, if so.
    pub read_only: Option<String>,
}

/// A copy under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Number of the image.
    pub epoch: Epoch,
    /// Bytes copied.
    pub done: u64,
    /// Bytes to be copied.
    pub total: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_request_for_a_checkpoint_is_what_the_library_writes() {
        let plain = Request::Checkpoint { stop: false, wait: true, wishes: Wishes::default() };
        let text = r#"{"request":"checkpoint","stop":false,"wait":true}"#;
        assert_eq!(serde_json::to_string(&plain).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), plain);
    }

    #[test]
    fn wishes_are_told_one_by_one() {
        let wishes = Wishes { engine: Some("copy".into()), ..Wishes::default() };
        let request = Request::Checkpoint { stop: true, wait: true, wishes };
        let text = r#"{"request":"checkpoint","stop":true,"wait":true,"wishes":{"engine":"copy"}}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
    }
}
