//! Calling the CUDA driver's checkpoint API, in a process of its own.
//!
//! * [`caller`]: `holdfast __cuda`, the process that has loaded libcuda and calls it.
//! * [`client`]: starting one, and asking it, with a deadline for every answer; used by the agent and `doctor`.
//! * [`driver`]: the agent's end as the driver's API: a caller that does not answer is killed, the next call gets a
//!   fresh one.
//! * [`messages`]: what they say to each other.
//!
//! Why not in the agent: a library of that size brings threads, devices and its own faults, some calls are known to
//! hang (docs/cuda.md), and an agent that hangs has no images. Why not the tool cuda-checkpoint: each of its runs
//! attaches to the driver anew, which takes seconds.

pub mod caller;
pub mod client;
pub mod driver;
pub mod messages;

/// The release of the NVIDIA driver, as the kernel's part of it says.
pub fn release() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    release_in(&text).unwrap_or_default().to_owned()
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
