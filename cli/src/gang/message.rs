//! What members of a gang, and commands, say to the leader, and what it says to them.
//!
//! One JSON object per frame ([`super::wire`]). Both have the same version, or nothing but [`Message::Join`] and
//! [`Message::Refused`] is said: these two stay as they are.

use holdfast_image::control::{Reply, Secret, Wishes};
use serde::{Deserialize, Serialize};

/// One message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "message", content = "of", rename_all = "snake_case")]
pub enum Message {
    /// The first, to the leader.
    Join(Join),
    /// Its answer: no, and why.
    Refused {
        /// Why.
        reason: String,
    },
    /// Its answer: not now, for the gang that is there is complete; it may be about to end.
    Later {
        /// Why.
        reason: String,
    },
    /// Its answer to a member: wait for the others.
    Welcome,
    /// All members are there.
    Complete {
        /// Ascends: threads of the leader may overtake one another.
        number: u64,
        /// Their hosts, in order.
        hosts: Vec<String>,
        /// Of an open gang: what its servers prove.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Secret>,
    },
    /// From a member that was added: its server listens.
    Serves {
        /// At this port.
        port: u16,
    },
    /// From the leader: a checkpoint begins.
    Prepare(Prepare),
    /// What a member says in a phase; the bytes come with it.
    Say {
        /// Of this round.
        round: u64,
        /// The phase, as a number.
        phase: u32,
    },
    /// What all have said, one after the other.
    Met {
        /// Of this round.
        round: u64,
        /// The phase, as a number.
        phase: u32,
        /// The lengths.
        lens: Vec<u64>,
    },
    /// The round is over.
    Failed {
        /// This one.
        round: u64,
        /// Why.
        why: Failed,
    },
    /// From a member: a checkpoint of the gang is asked for.
    Ask {
        /// End the programs then.
        stop: bool,
        /// How.
        wishes: Wishes,
    },
    /// From the leader: the checkpoint that was asked for did not begin, or is not tried again.
    NoRound {
        /// Why.
        why: Failed,
    },
    /// From a member: how its part of the protection of an image went; from the leader: how it went for all.
    Guarded {
        /// The image of the gang.
        image: u64,
        /// Why it is not protected, if it is not.
        why: Option<String>,
    },
    /// From a member to another one: what is wanted of one of its sets.
    Get {
        /// The set.
        set: String,
        /// Of it.
        wanted: Wanted,
    },
    /// The answer: the bytes come with it.
    Piece,
    /// From each side, now and then: it is there.
    Here,
    /// From a member, before it leaves: its program has failed, and all are to be restarted.
    Fails,
    /// From a member: its program has ended.
    Bye,
    /// From a command: a checkpoint.
    Checkpoint {
        /// End the programs then.
        stop: bool,
        /// Answer when the image is committed.
        wait: bool,
        /// How.
        wishes: Wishes,
    },
    /// To a command.
    Reply(Box<Reply>),
}

/// What is wanted of a set ([`super::guard`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// What it consists of.
    Group,
    /// What its parity and data were when it was made.
    Sums,
    /// Bytes of the member's stream.
    Stream {
        /// From here on.
        offset: u64,
        /// So many.
        len: u64,
    },
    /// Bytes of its parity.
    Parity {
        /// From here on.
        offset: u64,
        /// So many.
        len: u64,
    },
}

impl Wanted {
    /// How many bytes the answer has, if that is known.
    pub fn len(self) -> Option<u64> {
        match self {
            Wanted::Group | Wanted::Sums => None,
            Wanted::Stream { len, .. } | Wanted::Parity { len, .. } => Some(len),
        }
    }
}

/// Who comes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// Its version of Holdfast.
    pub version: String,
    /// The gang that it means.
    pub gang: String,
    /// Its host.
    pub host: String,
    /// Which member it is; `None`: a command.
    #[serde(default)]
    pub member: Option<Member>,
}

/// A member that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub member: u32,
    /// How many it thinks that there are.
    pub members: u32,
    /// The image of the gang that it restarts; `None`: it starts afresh.
    pub image: Option<u64>,
    /// It meets the others before a restart, to agree on its image.
    #[serde(default)]
    pub meets: bool,
    /// It is added to a gang that runs: by this start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
}

/// A checkpoint of the gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// Number of the round.
    pub round: u64,
    /// End the programs then.
    pub stop: bool,
    /// How.
    pub wishes: Wishes,
}

/// Why a round is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// The member that is the reason.
    pub member: Option<u32>,
    /// Its host; may be empty.
    pub host: String,
    /// What is wrong there.
    pub reason: String,
    /// How its answer to a command is called.
    pub kind: FailedKind,
}

/// What is known of it besides its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailedKind {
    /// An object is not supported.
    Refused,
    /// It may well succeed if it is tried again at once.
    Again,
    /// The store is full.
    Full,
    /// Anything else.
    Other,
}
