//! What a restart would overwrite or cut off is kept in a folder of the job: no byte is ever lost.
//!
//! Called by [`super::regular`] and [`super::contents`]. How it fails: an error; the file is left as it is then.

use crate::rebuild::paths;
use crate::rebuild::renamed::kept;
use holdfast_image::bytes::Name;
use holdfast_image::record::Object;
use holdfast_sys::{at, clock, memfd};
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Makes the folder for what restarts keep.
pub fn make_saved_dir(saved_dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(saved_dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Copies what lies behind `size` in a file, which need not be open for reading, into a new file of the store.
/// `path`: for its name.
///
/// # Errors
/// As open; ENOSPC.
pub fn keep_tail(file: &File, path: &Name, size: u64, saved_dir: &Path) -> io::Result<PathBuf> {
    make_saved_dir(saved_dir)?;
    let source = File::from(paths::reopen(file.as_fd(), 0)?);
    let base = path.as_path().file_name().unwrap_or_default();
    let stamp = clock::realtime_ns() / 1_000_000;
    for attempt in 0_u32..1000 {
        let mut name = format!("{}-{attempt:03}-", u64::from(attempt) + stamp).into_bytes();
        name.extend(base.as_bytes().iter().take(180));
        name.extend(b".tail");
        let target = saved_dir.join(std::ffi::OsStr::from_bytes(&name));
        match File::options().write(true).create_new(true).mode(0o600).open(&target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                let copied = copy_tail(&source, size, &file).and_then(|()| file.sync_all());
                if copied.is_err() {
                    let _ = fs::remove_file(&target);
                }
                return copied.map(|()| target);
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Copies what lies behind `from`; what is a hole stays one.
fn copy_tail(mut source: &File, from: u64, mut target: &File) -> io::Result<()> {
    let len = source.metadata()?.len();
    let mut at = from;
    while let Some((start, end)) = memfd::next_data(source.as_fd(), at)? {
        let (start, end) = (start.max(at), end.min(len));
        if start >= end {
            break;
        }
        source.seek(SeekFrom::Start(start))?;
        target.seek(SeekFrom::Start(start - from))?;
        io::copy(&mut source.take(end - start), &mut target)?;
        at = end;
    }
    target.set_len(len.saturating_sub(from))
}

/// Keeps a file that was found, which is open: another name for it, or a copy. How it fails: the same image may not be
/// restarted again.
pub fn keep(object: &Object, mut file: &File, saved_dir: &Path) {
    let Object::Regular { inode, born_ns: Some(born), now: Some(now), .. } = object else { return };
    let to = kept(saved_dir, *inode, *born);
    if to.exists() {
        return;
    }
    let mut keep = || {
        make_saved_dir(saved_dir)?;
        let name = CString::new(to.as_os_str().as_bytes())?;
        at::link(file.as_fd(), &name).or_else(|_| {
            file.rewind()?;
            let mut copy = File::options().write(true).create_new(true).mode(0o600).open(&to)?;
            io::copy(&mut file, &mut copy).map(drop)
        })
    };
    if let Err(error) = keep() {
        tracing::warn!("{now} is not kept for another restart: {error}");
    }
}
