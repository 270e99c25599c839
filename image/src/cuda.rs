//! What an image says of the CUDA state of a process: that the driver had brought it into the process's own memory.
//!
//! Written by the agent at a cut, read by a restart, which has the driver restore that state, and by `holdfast show`.
//! Invariant: a process that has this in its record was CHECKPOINTED at the cut; one without it used no device.

use crate::bytes::{Blob, Name};
use serde::{Deserialize, Serialize};

/// Of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaRecord {
    /// As the driver calls it: always "checkpointed".
    pub state: String,
    /// Version of CUDA that the driver is for: 1000 * major + 10 * minor (cuDriverGetVersion).
    pub api_version: i32,
    /// Release of the driver, such as "580.159". Empty: not known.
    pub release: String,
    /// The libcuda that the process has mapped.
    pub library: Name,
    /// Devices that the driver offered to the agent; the process may have used some of them.
    pub devices: Vec<CudaDevice>,
    /// The driver's file about the processes of a job, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_file: Option<JobFile>,
    /// What of its device memory a keeper has: the image has it in a space of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptMemory>,
    /// What became free on each device by the driver's checkpoint of this process: its restore takes it again. Empty:
    /// not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<DeviceNeed>,
}

/// Memory of a device that a restore takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceNeed {
    /// Of the device.
    pub uuid: [u8; 16],
    /// How much.
    pub bytes: u64,
}

/// The file that `CUDA_CHECKPOINT_JOB_FILE` names: the driver's own, without meaning for others. It
/// changes while processes are checkpointed, and a restore wants it as it was after the last of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFile {
    /// Absolute.
    pub path: Name,
    /// All of it.
    pub content: Blob,
    /// Who owns it.
    pub user: u32,
    /// Permissions.
    pub mode: u32,
}

/// Device memory of a process that a keeper has. Its content is in the space of devices
/// ([`crate::address_space::DEVICES`]).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KeptMemory {
    /// Key of the digests.
    pub key: [u8; 16],
    /// A number that the memory of the process has, too, and no other image.
    pub seal: u64,
    /// Ascending by name.
    pub blocks: Vec<KeptBlock>,
}

/// A piece of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KeptBlock {
    /// Its first slot.
    pub name: u64,
    /// Its length.
    pub bytes: u64,
    /// Of the device.
    pub uuid: [u8; 16],
}

impl CudaRecord {
    /// The only state that an image can be made in.
    pub const STATE: &str = "checkpointed";
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaDevice {
    /// "GPU-" and 32 hexadecimal digits in groups, as nvidia-smi prints it.
    pub uuid: String,
    /// Its model.
    pub name: String,
}

/// A version of CUDA in words: "13.0".
pub fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Bytes of a UUID as nvidia-smi prints them.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let groups: Vec<&str> = groups.iter().filter_map(|&(from, to)| hex.get(from..to)).collect();
    format!("GPU-{}", groups.join("-"))
}

/// The bytes of a UUID that is written so.
pub fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.strip_prefix("GPU-")?.bytes().filter(|&byte| byte != b'-').collect();
    let mut bytes = [0; 16];
    if digits.len() != 2 * bytes.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Who has the device memory of a program, bytes. It decides what a checkpoint costs: what libholdfast has is copied to
/// the host while calls wait, chunk by chunk that has changed; what a keeper has, on the device; what the driver
/// carries, all of it, there and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceMemory {
    /// Owned by libholdfast.
    pub library: u64,
    /// Lent by a keeper.
    pub keeper: u64,
    /// Carried by the driver: pools, arrays, what the program maps itself. Not counted: variables and code.
    pub driver: u64,
}

/// How long the driver took, nanoseconds, and what lay between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaStop {
    /// Processes that use CUDA.
    pub processes: u64,
    /// Until their calls waited and their work on devices was done.
    pub lock_ns: u64,
    /// Until their device memory was in their own.
    pub checkpoint_ns: u64,
    /// The stop of all threads.
    pub host_ns: u64,
    /// Until it was on the devices again. 0: it was not restored, as the program was ended.
    pub restore_ns: u64,
    /// Until their calls went on.
    pub unlock_ns: u64,
    /// Before the lock: until the device memory that libholdfast owns was copied to their own memory.
    pub leave_ns: u64,
    /// Of that: until all work was done, nanoseconds of all processes together, as all that follow.
    pub drain_ns: u64,
    /// Of that: hashing.
    pub hash_ns: u64,
    /// Of that: copying.
    pub copy_ns: u64,
    /// Of that: unmapping.
    pub unmap_ns: u64,
    /// After the unlock: until it was on the devices again.
    pub return_ns: u64,
    /// Of that: making and mapping.
    pub map_ns: u64,
    /// Of that: copying.
    pub fill_ns: u64,
    /// Of that: comparing digests.
    pub check_ns: u64,
    /// Bytes of that memory.
    pub data_bytes: u64,
    /// Bytes of device memory that the driver carried, as the program has asked for it.
    pub driver_bytes: u64,
    /// Bytes of it that were hashed; the rest was not touched since the image before.
    pub hashed_bytes: u64,
    /// Bytes that a keeper had in its cache on the device.
    pub cached_bytes: u64,
    /// Bytes of its chunks that had changed and were copied.
    pub dirty_bytes: u64,
    /// Bytes of its chunks that had become zero.
    pub zero_bytes: u64,
    /// Bytes that the program, or `--cuda-skip`, has left out: zero after a restart.
    pub discarded_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_uuids_are_written_as_the_driver_does() {
        assert_eq!(
            (version(12080), version(13000), version(13040)),
            ("12.8".into(), "13.0".into(), "13.4".into())
        );
        let bytes = std::array::from_fn(|at| u8::try_from(at).unwrap_or(0) * 17);
        assert_eq!(uuid(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(uuid_bytes(&uuid(&bytes)), Some(bytes));
        for wrong in
            ["", "GPU-", "00112233-4455-6677-8899-aabbccddeeff", "GPU-00112233-4455-6677-8899-aabbccddeefg"]
        {
            assert_eq!(uuid_bytes(wrong), None, "{wrong}");
        }
    }
}
