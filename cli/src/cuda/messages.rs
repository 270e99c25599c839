//! What an agent asks of a caller, and the answers: one JSON message each over a socketpair (SOCK_SEQPACKET).
//!
//! Both ends are the same binary. What must hold: one answer to each question, in their order, but for
//! [`Question::Over`], which has none; the first message is the caller's [`Answer::Ready`] or [`Answer::Unusable`].

use holdfast_image::cuda::{CudaDevice, version};
use holdfast_sys::cuda::DevicePair;
use holdfast_sys::fd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// Longest message: bytes.
pub const LONGEST: usize = 64 << 10;

/// What the caller is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// cuCheckpointProcessGetState.
    State { pid: i32 },
    /// cuCheckpointProcessGetRestoreThreadId.
    RestoreThread { pid: i32 },
    /// cuCheckpointProcessLock.
    Lock { pid: i32, timeout_ms: u32 },
    /// cuCheckpointProcessCheckpoint.
    Checkpoint { pid: i32 },
    /// cuCheckpointProcessRestore; onto these devices, or the same ones if there are none.
    Restore { pid: i32, onto: Vec<DevicePair> },
    /// cuCheckpointProcessUnlock.
    Unlock { pid: i32 },
    /// The process ends as it is: it is not to be restored.
    Over { pid: i32 },
    /// How much memory of each device is free? The answer is [`Answer::Room`].
    Room,
}

/// Memory of a device now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceRoom {
    /// Which device.
    pub uuid: [u8; 16],
    /// The number in the name of its file.
    pub minor: Option<u32>,
    /// Bytes that nothing has.
    pub free: u64,
    /// Bytes that there are.
    pub total: u64,
}

/// What is known of a driver.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Version of CUDA that it is for.
    pub api_version: i32,
    /// It has the checkpoint API.
    pub can_checkpoint: bool,
    /// Its devices.
    pub devices: Vec<CudaDevice>,
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without = if self.can_checkpoint { "" } else { ", which cannot checkpoint" };
        write!(f, "for CUDA {}{without}", version(self.api_version))?;
        let device = |CudaDevice { uuid, name }: &CudaDevice| format!("{name} ({uuid})");
        let devices: Vec<String> = self.devices.iter().map(device).collect();
        let devices = if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") };
        write!(f, "; {devices}")
    }
}

/// What it says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The driver is initialised.
    Ready(Facts),
    /// There will be no answers.
    Unusable {
        /// In words.
        why: String,
    },
    /// The call succeeded, with this value if it has one.
    Done {
        /// A state, or a thread.
        value: i32,
    },
    /// Of each device.
    Room {
        /// See there.
        devices: Vec<DeviceRoom>,
    },
    /// How much memory is free is not to be had.
    NoRoom {
        /// Why not.
        why: String,
    },
    /// It failed.
    Failed {
        /// A CUresult.
        code: i32,
    },
}

/// Sends one.
///
/// # Errors
/// EPIPE: the other end is closed.
pub fn send(socket: BorrowedFd<'_>, message: &impl Serialize) -> io::Result<()> {
    fd::send(socket, &serde_json::to_vec(message)?, libc::MSG_NOSIGNAL).map(drop)
}

/// Waits for one. `None`: the other end is closed.
///
/// # Errors
/// It is not one of ours.
pub fn receive<Message: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut buffer = vec![0; LONGEST];
    loop {
        match fd::receive(socket, &mut buffer, 0) {
            Ok(0) => return Ok(None),
            Ok(len) => return serde_json::from_slice(&buffer[..len]).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_travel_and_what_is_none_is_an_error() {
        let (one, two) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let lock = Question::Lock { pid: 7, timeout_ms: 10_000 };
        // As many devices as a driver can have.
        let restore = Question::Restore { pid: i32::MAX, onto: vec![[[255; 16]; 2]; 64] };
        for question in [lock, restore] {
            send(one.as_fd(), &question).unwrap();
            assert_eq!(receive(two.as_fd()).unwrap(), Some(question));
        }
        send(one.as_fd(), &"something else").unwrap();
        assert!(receive::<Question>(two.as_fd()).is_err());
        drop(one);
        assert_eq!(receive::<Question>(two.as_fd()).unwrap(), None);
    }

    #[test]
    fn a_driver_is_told_in_words() {
        let device = CudaDevice { uuid: "GPU-1".into(), name: "H100".into() };
        let facts = Facts { api_version: 13000, can_checkpoint: true, devices: vec![device] };
        assert_eq!(facts.to_string(), "for CUDA 13.0; H100 (GPU-1)");
        let old = Facts { api_version: 12040, ..Facts::default() };
        assert_eq!(old.to_string(), "for CUDA 12.4, which cannot checkpoint; no device");
    }
}
