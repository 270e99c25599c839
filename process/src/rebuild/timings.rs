//! Where the time of a restart went.

use std::fmt;

/// Figures of one restart, as the agent measured them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebuildTimings {
    /// From the start of [`super::rebuild_job`] until the new process had all its files, nanoseconds.
    pub files_ns: u64,
    /// Exec of the seed, and the old address space laid out, nanoseconds.
    pub map_ns: u64,
    /// Filling or mapping the pages, and checking those that are mapped, nanoseconds.
    pub memory_ns: u64,
    /// Threads, signals, timers, registers, nanoseconds.
    pub threads_ns: u64,
    /// All of it, nanoseconds.
    pub total_ns: u64,
    /// Bytes copied into the program.
    pub copied_bytes: u64,
    /// Bytes mapped from segment files, read when they are touched.
    pub mapped_bytes: u64,
    /// Mappings made for the latter.
    pub mapped_runs: u64,
    /// Bytes of those copied that could have been mapped, were they not compressed.
    pub compressed_bytes: u64,
    /// The same, were there not so few of them in a row.
    pub scattered_bytes: u64,
}

impl fmt::Display for RebuildTimings {
    /// For the log; read by `benches/restart.py`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RebuildTimings { files_ns, map_ns, memory_ns, threads_ns, total_ns, .. } = self;
        let RebuildTimings {
            copied_bytes, mapped_bytes, mapped_runs, compressed_bytes, scattered_bytes, ..
        } = self;
        write!(
            f,
            "files_ns: {files_ns}, map_ns: {map_ns}, memory_ns: {memory_ns}, threads_ns: {threads_ns}, \
             total_ns: {total_ns}, copied_bytes: {copied_bytes}, mapped_bytes: {mapped_bytes}, \
             mapped_runs: {mapped_runs}, compressed_bytes: {compressed_bytes}, scattered_bytes: {scattered_bytes}"
        )
    }
}
