//! A file that a program had mapped, opened if it still is what the image says of it.
//!
//! Called by `space` for its pages and by `symbols` for its names. What must hold: nothing is waited for: a named pipe
//! may be in its place by now.

use crate::exit::{Exit, Failure};
use holdfast_image::record::FileIdentity;
use holdfast_process::mtime_ns;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;

/// Opens it. `why`: what follows if it has changed, for the message.
///
/// # Errors
/// It is not there, or has changed, by size and time; of the system.
pub fn open(file: &FileIdentity, why: &str) -> Result<File, Failure> {
    let path = file.path.as_path();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::NotFound, format!("{} is not there: {error}", path.display()))
        }
        _ => Failure::system(format_args!("reading {}", path.display()), &error),
    };
    let mut options = File::options();
    let opened =
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map_err(failed)?;
    let now = opened.metadata().map_err(failed)?;
    if !now.is_file() || (now.len(), mtime_ns(&now)) != (file.size, file.mtime_ns) {
        let what = format!("{} has changed since the checkpoint{why}", path.display());
        return Err(Failure::new(Exit::Refused, what));
    }
    Ok(opened)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    fn identity(path: &PathBuf) -> FileIdentity {
        let now = std::fs::metadata(path).unwrap();
        let (size, mtime_ns) = (now.len(), mtime_ns(&now));
        let path = path.as_path().into();
        FileIdentity { path, size, mtime_ns, build_id: None, mode: 0o600, inode: None, inside: None }
    }

    #[test]
    fn a_file_that_is_another_by_now_is_refused_and_a_pipe_not_waited_for() {
        let path = std::env::temp_dir().join(format!("holdfast-unchanged-{}", std::process::id()));
        std::fs::write(&path, "one").unwrap();
        let known = identity(&path);
        assert!(open(&known, "").is_ok());
        std::fs::write(&path, "other").unwrap();
        let failure = open(&known, ": so").unwrap_err();
        assert!(failure.exit == Exit::Refused && failure.message.ends_with("since the checkpoint: so"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open(&known, "").unwrap_err().exit, Exit::NotFound);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(open(&identity(&path), "").unwrap_err().exit, Exit::Refused);
        std::fs::remove_file(&path).unwrap();
    }
}
