//! Descriptors that lead to files of /proc/self and /proc/thread-self.

use holdfast_image::bytes::Name;
use holdfast_image::record::Object;

/// Flags of open(2) that make or change a file, or that the kernel reports but does not take.
pub const NOT_AGAIN: u32 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC).cast_unsigned();

/// A file or folder of a process's own in /proc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnFile<'a> {
    /// Of its first thread's folder, not of the process's.
    of_thread: bool,
    /// What comes after that folder.
    pub rest: &'a [u8],
    /// Its offset.
    pub position: u64,
}

impl OwnFile<'_> {
    /// As the process itself finds it, or, by its id, another one.
    pub fn path(&self, of: Option<i32>) -> Vec<u8> {
        let folder = match (of, self.of_thread) {
            (None, true) => "thread-self".to_owned(),
            (None, false) => "self".to_owned(),
            (Some(pid), true) => format!("{pid}/task/{pid}"),
            (Some(pid), false) => pid.to_string(),
        };
        [b"/proc/", folder.as_bytes(), self.rest].concat()
    }
}

/// What an object is of its holder's own files in /proc.
pub fn of_self(object: &Object) -> Option<OwnFile<'_>> {
    let (Object::Regular { path, position, .. } | Object::Directory { path, position, .. }) = object else {
        return None;
    };
    [(&b"/proc/self"[..], false), (b"/proc/thread-self", true)].into_iter().find_map(|(folder, of_thread)| {
        let rest = path.0.strip_prefix(folder)?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(OwnFile {
            of_thread,
            rest,
            position: *position,
        })
    })
}

/// What is opened in the place of an object that its holder will open itself.
pub fn stand_in(object: &Object, holder: usize) -> Option<Name> {
    let path = if matches!(object, Object::Directory { .. }) { "/" } else { "/dev/null" };
    (holder != 0 && of_self(object).is_some()).then(|| Name(path.as_bytes().to_vec()))
}
