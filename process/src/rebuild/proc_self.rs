//! Descriptors that lead to files of /proc/self.

use holdfast_image::bytes::Name;
use holdfast_image::record::Object;

/// Flags of open(2) that make or change a file, or that the kernel reports but does not take.
pub const NOT_AGAIN: u32 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC).cast_unsigned();

/// A file or folder of /proc/self; what comes after that.
pub fn of_self(object: &Object) -> Option<(&[u8], u64)> {
    let (Object::Regular { path, position, .. } | Object::Directory { path, position, .. }) = object else {
        return None;
    };
    let rest = path.0.strip_prefix(b"/proc/self")?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some((rest, *position))
}

/// What is opened in the place of an object that its holder will open itself.
pub fn stand_in(object: &Object, holder: usize) -> Option<Name> {
    let path = if matches!(object, Object::Directory { .. }) { "/" } else { "/dev/null" };
    (holder != 0 && of_self(object).is_some()).then(|| Name(path.as_bytes().to_vec()))
}
