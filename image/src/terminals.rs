//! Pseudo-terminals whose master is in the program.
//!
//! Part of the files part of the process record. Written by `process::capture::files::terminals`, read by
//! `process::rebuild::terminals`. Invariants: plain data.

use crate::bytes::Blob;
use crate::inode::Ownership;
use serde::{Deserialize, Serialize};

/// A pseudo-terminal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pty {
    /// Its number: `/dev/pts/N`.
    pub number: u32,
    /// The master was closed: the slave is hung up, and of the rest nothing is known.
    pub hung_up: bool,
    /// All descriptors of the slave were closed: reading from the master fails.
    pub slave_closed: bool,
    /// Struct termios2 (asm-generic/termbits.h).
    pub termios: Blob,
    /// Struct winsize.
    pub window: Blob,
    /// Packet mode (TIOCPKT).
    pub packets: bool,
    /// The slave cannot be opened (TIOCSPTLCK).
    pub locked: bool,
    /// The slave cannot be opened again (TIOCEXCL).
    pub exclusive: bool,
    /// Permission bits of `/dev/pts/N`.
    pub mode: u32,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// Foreground process group; 0: none.
    pub foreground: i32,
    /// A line that was begun and not ended, in canonical mode.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub line: Blob,
    /// Input before that which no process has read; where no lines are given out, one piece.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<PtyLine>,
    /// What was written at the slave and not read at the master.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub output: Blob,
}

/// A piece of input that one read gives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PtyLine {
    /// Its bytes.
    pub data: Blob,
    /// It ended by the character for the end of a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_of_file: bool,
}

fn is_empty(line: &Blob) -> bool {
    line.0.is_empty()
}
