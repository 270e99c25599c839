//! What can go wrong at a tier.
//!
//! Policy: an error names the object (as an address that the user can look at: path or URL), the cause and what to do.
//! Callers decide by the variant: [`TierError::is_transient`] says whether it is worth trying again by itself.

use std::io;

/// What can go wrong at a tier. `object` is the path or the address of the blob or folder, without credentials.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The name is taken.
    #[error(
        "{object}: it is there already; another agent writes to the same place: give one of the jobs another name"
    )]
    Exists {
        /// See [`TierError`].
        object: String,
    },
    /// There is no such blob.
    #[error("{object}: it is not there; restore it from another tier, or use an older image")]
    NotFound {
        /// See [`TierError`].
        object: String,
    },
    /// The blob ends before what was asked for.
    #[error(
        "{object}: it ends at byte {len}, more was written; use a copy in another tier, or an older image"
    )]
    Short {
        /// See [`TierError`].
        object: String,
        /// The length that it has, bytes.
        len: u64,
    },
    /// No space or quota left.
    #[error("{object}: no space left (or a quota is reached); free space there, or lower keep= of this tier")]
    Full {
        /// See [`TierError`].
        object: String,
    },
    /// The tier refuses: credentials, permissions, an owner that is not the caller.
    #[error("{object}: refused: {why}; check the permissions or the credentials")]
    Denied {
        /// See [`TierError`].
        object: String,
        /// In the words of the server or of the check.
        why: String,
    },
    /// The tier cannot be reached, or does not answer in time.
    #[error("{object}: not reachable: {why}; it is tried again")]
    Unavailable {
        /// See [`TierError`].
        object: String,
        /// In the words of the library.
        why: String,
    },
    /// A system call failed on a file.
    #[error("{call} {object}: {source}; check the file system and its permissions")]
    Io {
        /// The call, as a verb ("open", "write" …).
        call: &'static str,
        /// See [`TierError`].
        object: String,
        /// Its errno.
        source: io::Error,
    },
    /// Bytes that are not those that were written.
    #[error("{object}: at byte {offset}: {what}; use a copy in another tier, or an older image")]
    Damaged {
        /// See [`TierError`].
        object: String,
        /// Where in the blob.
        offset: u64,
        /// What should be there.
        what: String,
    },
    /// The address or the settings of a tier make no sense.
    #[error("{object}: {why}")]
    Settings {
        /// See [`TierError`].
        object: String,
        /// What is wrong, and what would be right.
        why: String,
    },
}

impl TierError {
    /// Whether the same call may succeed later without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            TierError::Unavailable { .. } | TierError::Full { .. } => true,
            TierError::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::StaleNetworkFileHandle
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::ConnectionReset
            ),
            TierError::Exists { .. }
            | TierError::NotFound { .. }
            | TierError::Short { .. }
            | TierError::Denied { .. }
            | TierError::Damaged { .. }
            | TierError::Settings { .. } => false,
        }
    }

    /// Whether it tells of the bytes of a blob, a bad block of a disk included; else of who reads, or of the way there.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            TierError::Damaged { .. } | TierError::Short { .. } => true,
            TierError::Io { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::EIO | libc::EBADMSG))
            }
            _ => false,
        }
    }

    /// The same error for who asks again.
    pub(crate) fn again(&self) -> TierError {
        let object = |object: &String| object.clone();
        match self {
            TierError::Exists { object: of } => TierError::Exists { object: object(of) },
            TierError::NotFound { object: of } => TierError::NotFound { object: object(of) },
            TierError::Short { object: of, len } => TierError::Short { object: object(of), len: *len },
            TierError::Full { object: of } => TierError::Full { object: object(of) },
            TierError::Denied { object: of, why } => {
                TierError::Denied { object: object(of), why: why.clone() }
            }
            TierError::Unavailable { object: of, why } => {
                TierError::Unavailable { object: object(of), why: why.clone() }
            }
            TierError::Io { call, object: of, source } => {
                let same = || io::Error::new(source.kind(), source.to_string());
                let source = source.raw_os_error().map_or_else(same, io::Error::from_raw_os_error);
                TierError::Io { call, object: object(of), source }
            }
            TierError::Damaged { object: of, offset, what } => {
                TierError::Damaged { object: object(of), offset: *offset, what: what.clone() }
            }
            TierError::Settings { object: of, why } => {
                TierError::Settings { object: object(of), why: why.clone() }
            }
        }
    }

    /// For `map_err` after a system call on the file `object`.
    pub fn io(call: &'static str, object: impl Into<String>) -> impl FnOnce(io::Error) -> TierError {
        let object = object.into();
        move |source| match source.raw_os_error() {
            // EFBIG: the file size limit of the agent (setrlimit(2), RLIMIT_FSIZE) or of the file system.
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => TierError::Full { object },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                TierError::Denied { object, why: source.to_string() }
            }
            Some(libc::ENOENT) => TierError::NotFound { object },
            Some(libc::EEXIST) => TierError::Exists { object },
            _ => TierError::Io { call, object, source },
        }
    }
}
