//! Calling the CUDA driver's checkpoint API, in a process of its own.
//!
//! * [`caller`]: `holdfast __cuda`, the process that has loaded libcuda and calls it.
//! * [`client`]: starting one, and asking it, with a deadline for every answer; used by the agent and `doctor`.
//! * [`driver`]: the agent's end as the driver's API: a caller that does not answer is killed, the next call gets a
//!   fresh one.
//! * [`messages`]: what they say to each other.
//! * [`room`]: free memory of devices, which Checkpoint and Restore need.
//!
//! Why not in the agent: a library of that size brings threads, devices and its own faults, some calls are known to
//! hang (docs/cuda.md), and an agent that hangs has no images. Why not the tool cuda-checkpoint: each of its runs
//! attaches to the driver anew, which takes seconds.

pub mod caller;
pub mod client;
pub mod driver;
pub mod messages;
pub mod room;

/// The release of the NVIDIA driver, as the kernel's part of it says.
pub fn release() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    release_in(&text).unwrap_or_default().to_owned()
}

/// Releases whose checkpoint API takes the program with it, and why.
const REFUSED: [(&str, &str); 1] = [(
    "610.57",
    "its cuCheckpointProcessLock ends the process that it is to lock (NVIDIA/cuda-checkpoint#58)",
)];

/// Why a release of the driver is not called at all; `None`: it is.
pub fn refused(release: &str) -> Option<&'static str> {
    let is = |known: &str| {
        release.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    REFUSED.iter().find(|(known, _)| is(known)).map(|(_, why)| *why)
}

/// The first word of the first line that is a number with points.
fn release_in(text: &str) -> Option<&str> {
    let is_release = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
    };
    text.lines().next()?.split_whitespace().find(is_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_ends_programs_is_refused() {
        for release in ["610.57", "610.57.01"] {
            assert!(refused(release).is_some_and(|why| why.contains("cuCheckpointProcessLock")), "{release}");
        }
        for release in ["", "610.5", "610.570", "610.58.02", "580.159.04"] {
            assert_eq!(refused(release), None, "{release}");
        }
    }

    #[test]
    fn the_release_is_found_in_what_the_kernel_says() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC 12.2\n";
        assert_eq!(release_in(open), Some("580.159.03"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan 23\n";
        assert_eq!(release_in(closed), Some("570.86.10"));
        assert_eq!(release_in(""), None);
        assert_eq!(release_in("NVRM version: none\n570.1\n"), None);
    }
}
