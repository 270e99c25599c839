//! Functions that programs in C call: what holds for each of them, and what they say on errors.
//!
//! Invariants: errno stays; a panic, which is a bug of ours, is an error of the call and not the end of the program.

use crate::client::Error;
use holdfast_sys::errno;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Does what a function is for. What a panic leaves behind is not used for anything but to be closed: so says `Err`.
///
/// # Errors
/// As `act`; its panic.
pub fn guarded<T>(act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    errno::kept(|| {
        catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
            Err(Error::State(format!("a fault in Holdfast's library ({text}): please report it")))
        })
    })
}

/// Takes note of the error of a call, for [`last`].
pub fn note(error: &Error) {
    let text = CString::new(error.to_string().replace('\0', "?")).unwrap_or_default();
    // A thread that ends has none any more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// What the last error of this thread was; empty: none. The text is there until the next one.
pub fn last() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(CStr::as_ptr(c""))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let error = guarded::<()>(|| panic!("of a test")).unwrap_err();
        assert!(error.to_string().contains("of a test"), "{error}");
        assert_eq!(guarded(|| Ok(3)).unwrap(), 3);
    }
}
