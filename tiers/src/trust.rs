//! Whether a file in a home folder may be believed that decides where images come from: what is read from there becomes
//! a running program of the caller.
//!
//! Called for configuration files (cli) and for those of the tools of S3. HOME may be another user's: `sudo -E`, `su`
//! without `-`. What must hold: neither the file nor a folder between it and the home folder is another user's (but
//! root's), and no other user may write to one that he can reach.

use crate::lock::euid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why a file is not believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Untrusted {
    /// It, or a folder above it, is another user's.
    Anothers(String),
    /// It is the caller's, but others may change it.
    Open(String),
}

/// Looks at a file and at the folders above it, up to `top`.
///
/// # Errors
/// One cannot be looked at.
pub fn judge(path: &Path, top: &Path) -> io::Result<Option<Untrusted>> {
    let mut all: Vec<&Path> = path.ancestors().take_while(|one| one.starts_with(top)).collect();
    all.reverse();
    // Below a folder that no other user may enter, modes do not matter.
    let mut is_closed = false;
    for one in all {
        let meta = fs::metadata(one)?;
        let shown = one.display();
        if ![0, euid()].contains(&meta.uid()) {
            let why = format!("{shown} belongs to uid {}, you are uid {}", meta.uid(), euid());
            return Ok(Some(Untrusted::Anothers(why)));
        }
        let is_sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
        if meta.mode() & 0o022 != 0 && !is_sticky && !is_closed {
            let why = format!(
                "others may write to {shown} (mode {:04o}): chmod go-w {shown}",
                meta.mode() & 0o7777
            );
            return Ok(Some(Untrusted::Open(why)));
        }
        is_closed |= meta.is_dir() && meta.mode() & 0o011 == 0;
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn what_others_own_or_may_change_is_named() {
        let home = std::env::temp_dir().join(format!("holdfast-trust-{}", std::process::id()));
        let (folder, file) = (home.join(".config"), home.join(".config/config.toml"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let judged = |home_mode, folder_mode, file_mode| {
            mode(&home, home_mode);
            mode(&folder, folder_mode);
            mode(&file, file_mode);
            judge(&file, &home).unwrap()
        };
        assert_eq!(judged(0o755, 0o755, 0o644), None);
        assert_eq!(judged(0o700, 0o775, 0o664), None, "nobody else gets there");
        assert_eq!(judged(0o1777, 0o755, 0o644), None, "others may not remove it");
        let is_open = |judged| matches!(judged, Some(Untrusted::Open(why)) if why.contains("chmod go-w"));
        assert!(is_open(judged(0o755, 0o775, 0o644)) && is_open(judged(0o755, 0o755, 0o664)));
        assert!(is_open(judged(0o777, 0o700, 0o600)));
        judged(0o755, 0o755, 0o644);
        if euid() == 0 {
            for path in [&file, &folder, &home] {
                chown(path, Some(2102), None).unwrap();
                assert!(
                    matches!(judge(&file, &home).unwrap(), Some(Untrusted::Anothers(why)) if why.contains("2102"))
                );
                chown(path, Some(0), None).unwrap();
            }
        }
        assert!(judge(&home.join("none"), &home).is_err());
        fs::remove_dir_all(home).unwrap();
    }
}
