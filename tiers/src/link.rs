//! One budget per link, shared by all jobs of the user on this host: a small file in memory says until when the link is
//! taken.
//!
//! Called by the cascade before each piece where a tier has `rate=`; by what shares the rate of a store
//! ([`crate::share`]). Tiers of one server or one file system are one link. Invariants: the file is locked only while
//! eight bytes are read and written; a file that cannot be used, or holds nonsense (a clock that was set back), costs
//! at most [`AHEAD`] of waiting.

use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64;

/// Time of a link that may be used at once after a pause.
const BURST: Duration = Duration::from_millis(100);
/// Longest that what waits before us may take.
const AHEAD: Duration = Duration::from_secs(60);

/// See the head of the file.
pub(crate) struct Link {
    rate: u64,
    /// Most bytes that may be caught up after a pause, where that is less than [`BURST`].
    burst: u64,
    /// Shared with the agents of other jobs.
    file: Option<File>,
    /// Where there is no file.
    alone: Mutex<u64>,
}

impl Link {
    pub(crate) fn new(address: &str, rate: u64) -> Link {
        let path = folder().join(format!(
            "holdfast-link-{}-{:016x}",
            crate::lock::euid(),
            xxh3_64(link(address).as_bytes())
        ));
        Link { rate, burst: u64::MAX, file: open(&path).ok(), alone: Mutex::default() }
    }

    /// The link whose file is this one.
    pub(crate) fn at(path: &Path, burst: u64) -> io::Result<Link> {
        Ok(Link { rate: 0, burst, file: Some(open(path)?), alone: Mutex::default() })
    }

    /// Takes the link for so many bytes. Returns how long to wait before they are sent.
    pub(crate) fn take(&self, bytes: u64) -> Duration {
        self.take_at(bytes, self.rate)
    }

    /// The same at this rate.
    pub(crate) fn take_at(&self, bytes: u64, rate: u64) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Some(file) = &self.file else {
            let mut until = self.alone.lock();
            let (wait, next) = self.next(now, *until, time_for(bytes, rate), rate);
            *until = next;
            return wait;
        };
        let shared = || -> io::Result<Duration> {
            file.lock()?;
            let mut until = [0; 8];
            // A new file is empty.
            let _ = file.read_exact_at(&mut until, 0);
            let (wait, next) = self.next(now, u64::from_le_bytes(until), time_for(bytes, rate), rate);
            let written = file.write_all_at(&next.to_le_bytes(), 0);
            file.unlock()?;
            written.map(|()| wait)
        };
        shared().unwrap_or_else(|_| time_for(bytes, rate))
    }

    /// What `until` becomes, and how long that is from now.
    fn next(&self, now: Duration, until: u64, time: Duration, rate: u64) -> (Duration, u64) {
        let earliest = now.saturating_sub(time_for(self.burst, rate).min(BURST));
        let from = Duration::from_nanos(until).clamp(earliest, now.saturating_add(AHEAD));
        let next = from.saturating_add(time);
        (next.saturating_sub(now), u64::try_from(next.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How long `bytes` take at `rate` bytes a second.
pub(crate) fn time_for(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn folder() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    own.filter(|path| path.is_absolute() && path.is_dir()).unwrap_or_else(|| PathBuf::from("/dev/shm"))
}

/// What two addresses have in common that share a link: server and bucket, or the file system.
fn link(address: &str) -> String {
    if let Some((scheme, rest)) = address.split_once("://") {
        return format!("{scheme}://{}", rest.split('/').next().unwrap_or_default());
    }
    let path = Path::new(address.strip_prefix("dir=").unwrap_or(address));
    let device = path.ancestors().find_map(|there| Some(std::fs::metadata(there).ok()?.dev()));
    device.map_or_else(|| address.to_owned(), |device| format!("device {device}"))
}

/// Ours, and no link: the folder may be open to all.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.uid() == crate::lock::euid() {
        Ok(file)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn link_at(path: &Path, rate: u64) -> Link {
        Link { rate, ..Link::at(path, u64::MAX).unwrap() }
    }

    #[test]
    fn two_users_of_a_link_share_its_rate() {
        let path = std::env::temp_dir().join(format!("holdfast-link-test-{}", std::process::id()));
        let (one, other) = (link_at(&path, 50), link_at(&path, 50));
        let first = one.take(1000);
        assert!(first > Duration::from_secs(15) && first <= Duration::from_secs(20), "{first:?}");
        let second = other.take(1000);
        assert!(second > first + Duration::from_secs(5), "{second:?}");
        std::fs::write(&path, [0xFF; 8]).unwrap();
        assert!(one.take(1) < AHEAD + Duration::from_secs(1), "a clock that was set back");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_pause_is_made_up_for_by_a_burst_at_most() {
        let link = Link { rate: 1000, burst: u64::MAX, file: None, alone: Mutex::default() };
        let (wait, _) = link.next(Duration::from_secs(100), 0, Duration::from_secs(1), 1000);
        assert_eq!(wait, Duration::from_millis(900));
        let link = Link { burst: 10, ..link };
        let (wait, _) = link.next(Duration::from_secs(100), 0, Duration::from_secs(1), 1000);
        assert_eq!(wait, Duration::from_millis(990));
    }

    #[test]
    fn a_link_is_a_server_or_a_file_system() {
        assert_eq!(link("s3://bucket/a/b"), link("s3://bucket/c"));
        assert_ne!(link("s3://bucket/a"), link("s3://other/a"));
        assert_eq!(link("dir=/proc/nothing/here"), link("/proc/x"));
    }
}
