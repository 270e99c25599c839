//! The file in which the driver keeps what it has to know of all processes of a job: `CUDA_CHECKPOINT_JOB_FILE`.
//!
//! Called by the agent after the last process is CHECKPOINTED ([`saved`]), when the file is as a restore wants it, and
//! at a restart before anything runs ([`put_back`]). Sources: ai-dynamo/snapshot#57 and dynamo#13252 (its content is
//! the driver's own and changes during a checkpoint; it is wanted at the same path, outside /proc),
//! NVIDIA/cuda-checkpoint#43 (driver 590 on: the variable is set before CUDA is used). What must hold: nothing but a
//! regular file of the process's own user is read or written, whatever the variable names; it is written as the
//! process, which alone follows the links on the way; a file that living processes use is not changed. Fails by: words
//! for the user. No file where the variable names one is none: older drivers make none.

use super::uses;
use crate::rebuild::paths::{self, Opener};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::cuda::JobFile;
use holdfast_image::record::{Ownership, ProcessRecord};
use holdfast_sys::{procfs, unix_socket};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The variable.
const VARIABLE: &[u8] = b"CUDA_CHECKPOINT_JOB_FILE=";
/// Longest content that is kept: bytes. The driver's is a few hundred for each process, as far as it is known.
const LONGEST: u64 = 1 << 20;

/// What the environment of a process names.
fn path_of(pid: i32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(VARIABLE))?;
    (!value.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(value)))
}

/// The job file of a process that is CHECKPOINTED.
///
/// # Errors
/// It cannot be put back at a restart, or not be read.
pub fn saved(pid: i32) -> Result<Option<JobFile>, String> {
    let Some(path) = path_of(pid) else { return Ok(None) };
    let of = |what: &str| format!("the job file of CUDA, {}: {what}", path.display());
    if !path.is_absolute() || path.starts_with("/proc") {
        return Err(of("CUDA_CHECKPOINT_JOB_FILE must be an absolute path outside /proc"));
    }
    let user = user_of_process(pid).ok_or_else(|| of("its process has ended"))?;
    let mut file = match open(&path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(of(&error.to_string())),
    };
    let found = file.metadata().map_err(|error| of(&error.to_string()))?;
    must_be(&found, user).map_err(|what| of(&what))?;
    let mut content = Vec::new();
    (&mut file).take(LONGEST + 1).read_to_end(&mut content).map_err(|error| of(&error.to_string()))?;
    if content.len() as u64 > LONGEST {
        return Err(of(&format!("it is larger than the {LONGEST} bytes that an image takes")));
    }
    let mode = found.permissions().mode() & 0o777;
    Ok(Some(JobFile { path: Name::from(path.as_path()), content: Blob(content), user, mode }))
}

/// Who a process is. For an agent that is not root's, whatever the kernel calls its processes, as it itself is.
fn user_of_process(pid: i32) -> Option<u32> {
    let status = procfs::Status::read(pid, pid).ok()?;
    let effective = status.get("Uid")?.split_whitespace().nth(1)?.parse().ok()?;
    Some(one_of_ours(effective))
}

fn one_of_ours(user: u32) -> u32 {
    let own = unix_socket::effective_user();
    if own == 0 { user } else { own }
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn must_be(found: &Metadata, user: u32) -> Result<(), String> {
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if found.uid() != user {
        return Err(format!("it belongs to user {}, its program to user {user}", found.uid()));
    }
    Ok(())
}

/// Has the file be as it was, as the process whose it was.
///
/// # Errors
/// It cannot be; processes that live may still need what is there.
pub fn put_back(saved: &JobFile, process: &ProcessRecord) -> Result<(), String> {
    let path = saved.path.as_path();
    let of = |what: String| format!("the job file of CUDA, {}: {what}", path.display());
    if !path.is_absolute() || path.starts_with("/proc") {
        return Err(of("not an absolute path outside /proc".to_owned()));
    }
    if let Some(pid) = user_of(path) {
        let name = crate::refuse::name_of(pid);
        return Err(of(format!("process {pid} ({name}) uses it: end that process before the restart")));
    }
    write(saved, &Opener::of(process)).map_err(of)
}

/// A process that uses CUDA with this file.
fn user_of(path: &Path) -> Option<i32> {
    let all = procfs::processes().unwrap_or_default();
    let named: Vec<i32> =
        all.into_iter().filter(|&pid| path_of(pid).is_some_and(|own| own == path)).collect();
    uses::among(&named, |_| false).first().map(|one| one.pid)
}

fn write(saved: &JobFile, opener: &Opener) -> Result<(), String> {
    const WRITING: u32 = (libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY).cast_unsigned();
    let text = |error: io::Error| paths::explain(&error);
    let user = one_of_ours(saved.user);
    let group = opener.ids().map_or_else(unix_socket::effective_group, |ids| ids.group);
    // The variable is the program's own words.
    let place = opener.place_as_given(saved.path.as_path(), Some(Ownership { user, group }));
    let (_acting, place) = place.map_err(text)?;
    let new = WRITING | (libc::O_CREAT | libc::O_EXCL).cast_unsigned();
    let file = match place.open(new, 0o600) {
        Ok(file) => {
            must_be(&file.metadata().map_err(text)?, user)?;
            file.set_permissions(fs::Permissions::from_mode(saved.mode & 0o777)).map_err(text)?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = place.open(WRITING, 0).map_err(text)?;
            must_be(&file.metadata().map_err(text)?, user)?;
            file.set_len(0).map_err(text)?;
            file
        }
        Err(error) => return Err(text(error)),
    };
    (&file).write_all(&saved.content.0).map_err(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::credentials::Credentials;
    use holdfast_image::testing::empty_record;
    use std::os::unix::fs::{chown, symlink};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("cuda-job-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn back(saved: &JobFile) -> Result<(), String> {
        put_back(saved, &empty_record())
    }

    fn of(path: &Path, user: u32) -> JobFile {
        JobFile { path: Name::from(path), content: Blob(b"later".to_vec()), user, mode: 0o640 }
    }

    #[test]
    fn it_is_as_it_was_whether_or_not_there_is_one() {
        let folder = folder("back");
        let (path, user) = (folder.join("job"), unix_socket::effective_user());
        back(&of(&path, user)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let inode = fs::metadata(&path).unwrap().ino();
        fs::write(&path, "something longer").unwrap();
        back(&of(&path, user)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"later");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "what is open of it stays its own");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nothing_else_is_written_over() {
        let folder = folder("else");
        let (path, other, user) = (folder.join("job"), folder.join("other"), unix_socket::effective_user());
        fs::write(&other, "mine").unwrap();
        symlink(&other, &path).unwrap();
        back(&of(&path, user)).unwrap_err();
        assert_eq!(fs::read(&other).unwrap(), b"mine");
        if user == 0 {
            let refused = back(&of(&other, 1)).unwrap_err();
            assert!(refused.contains("belongs to user 0"), "{refused}");
            assert_eq!(fs::read(&other).unwrap(), b"mine");
        }
        back(&of(Path::new("/proc/self/comm"), user)).unwrap_err();
        back(&of(Path::new("job"), user)).unwrap_err();
        assert!(back(&of(&folder.join("none/job"), user)).unwrap_err().contains("none/job"));
        fs::remove_dir_all(folder).unwrap();
    }

    /// The folder is a process's that has become another user, and leads to root's.
    #[test]
    fn it_is_written_as_the_process() {
        const USER: u32 = 2102;
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let folder = folder("user");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let (theirs, roots) = (folder.join("theirs"), folder.join("roots"));
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&roots).unwrap();
        chown(&theirs, Some(USER), Some(USER)).unwrap();
        let mut process = empty_record();
        process.rights = Some(Credentials { users: [USER; 3], groups: [USER; 3], ..Credentials::default() });
        put_back(&of(&theirs.join("job"), USER), &process).unwrap();
        assert_eq!(fs::metadata(theirs.join("job")).unwrap().uid(), USER);
        fs::remove_dir_all(&theirs).unwrap();
        symlink(&roots, &theirs).unwrap();
        put_back(&of(&theirs.join("job"), USER), &process).unwrap_err();
        // One of its own there is not its own to write.
        fs::write(roots.join("job"), "mine").unwrap();
        chown(roots.join("job"), Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&roots, fs::Permissions::from_mode(0o700)).unwrap();
        put_back(&of(&theirs.join("job"), USER), &process).unwrap_err();
        assert_eq!(fs::read(roots.join("job")).unwrap(), b"mine");
        // Nor does root's own process go through another user's link.
        std::os::unix::fs::lchown(&theirs, Some(USER), Some(USER)).unwrap();
        fs::remove_file(roots.join("job")).unwrap();
        back(&of(&theirs.join("job"), 0)).unwrap_err();
        assert!(!roots.join("job").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_process_without_the_variable_has_none() {
        let own = std::process::id().cast_signed();
        assert_eq!(saved(own), Ok(None));
        assert_eq!(saved(i32::MAX), Ok(None));
    }
}
