//! errno of the thread, for functions that C programs call: they report by what they return, and leave errno alone.

use nix::errno::Errno;

/// Does something, after which errno is as it was.
pub fn kept<T>(act: impl FnOnce() -> T) -> T {
    let before = Errno::last_raw();
    let done = act();
    Errno::set_raw(before);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_leaves_it() {
        Errno::set_raw(42);
        let opened = kept(|| std::fs::File::open("/does/not/exist").is_err());
        assert_eq!((opened, Errno::last_raw()), (true, 42));
    }
}
