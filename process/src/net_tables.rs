//! A table of sockets in /proc/ID/net, of the network namespace that the process is in.
//!
//! Called by what looks for sockets of a kind: `tcp_table`, `internet` and `multicast` of `capture`. What cannot be
//! read is an error that names the table, never a table without lines.

use std::{fs, io};

/// Its text; empty: the kernel has no such sockets (a table of IPv6 where that is off, udplite).
///
/// # Errors
/// Names the table.
pub fn read(folder: &str, table: &str) -> Result<String, String> {
    let path = format!("{folder}/{table}");
    match fs::read_to_string(&path) {
        // The folder is gone with its process; then nothing is known.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::metadata(folder).is_ok() => {
            Ok(String::new())
        }
        other => other.map_err(|error| format!("{path} cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_table_that_the_kernel_lacks_is_empty() {
        assert!(read("/proc/self/net", "tcp").is_ok_and(|text| !text.is_empty()));
        assert_eq!(read("/proc/self/net", "no-such-table"), Ok(String::new()));
        // A folder in place of a table, and of a process that there is not.
        assert!(read("/proc/self", "net").is_err_and(|said| said.contains("/proc/self/net cannot be read")));
        assert!(read("/proc/0/net", "tcp").is_err());
    }
}
