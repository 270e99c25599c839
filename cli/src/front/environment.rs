//! The environment of a program that runs under Holdfast: LD_PRELOAD and a few HOLDFAST_* variables, nothing else but
//! what `--cpu-baseline` asks for, and a word for AddressSanitizer.

use super::baseline;
use crate::entries::{ENV_SUPERVISED, c_string, is_of, own_environment, variable};
use crate::exit::{Exit, Failure};
use crate::settings::{AioChoice, Allocator, CudaChoice, EngineChoice, IoUringChoice, Settings};
use holdfast_abi::environment::{
    AIO_OFF, CUDA_OFF, ENGINE_SLOTS, ENV_AIO, ENV_CUDA, ENV_CUDA_SKIP, ENV_ENGINE, ENV_FILTERS, ENV_IO_URING,
    ENV_KEY, ENV_MALLOC, ENV_MEMBER_KEY, ENV_MEMBER_SOCKET, ENV_ON_STOP, ENV_SIGNAL, ENV_SOCKET,
    IO_URING_KEEP, MALLOC_JEMALLOC, MALLOC_SYSTEM,
};
use holdfast_sys::unix_socket;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub const LIBRARY: &str = "libholdfast.so";

/// Finds libholdfast.so: `$HOLDFAST_LIB`, next to the binary, or in `../lib/holdfast/`.
///
/// # Errors
/// It is nowhere, or its path cannot be written in LD_PRELOAD.
pub fn library() -> Result<PathBuf, Failure> {
    let folder =
        std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let places = match std::env::var_os("HOLDFAST_LIB") {
        Some(path) => vec![PathBuf::from(path)],
        None => vec![folder.join(LIBRARY), folder.join("../lib/holdfast").join(LIBRARY)],
    };
    let Some(found) = places.iter().find_map(|path| path.canonicalize().ok()) else {
        let tried: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::new(
            Exit::Internal,
            format!("{LIBRARY} was not found (tried {}); install it, or set HOLDFAST_LIB", tried.join(", ")),
        ));
    };
    // ld.so(8): LD_PRELOAD is separated by spaces and colons, without any escape.
    if found.as_os_str().as_encoded_bytes().iter().any(|c| b" :\n\t".contains(c)) {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "{}: LD_PRELOAD cannot hold a path with blanks or colons; move the library",
                found.display()
            ),
        ));
    }
    Ok(found)
}

/// The environment for the program, in the order of ours.
///
/// # Errors
/// As [`library`].
pub fn for_program(
    socket: &Path,
    settings: &Settings,
    extra: &[(&str, OsString)],
) -> Result<Vec<CString>, Failure> {
    let library = library()?;
    let mut own: Vec<(String, OsString)> = vec![(ENV_SOCKET.into(), socket.into())];
    if let Some(key) = key()? {
        own.push((ENV_KEY.into(), key.into()));
    }
    let filters = holdfast_process::filters_of_the_host();
    if filters > 0 {
        own.push((ENV_FILTERS.into(), filters.to_string().into()));
    }
    let malloc = match settings.malloc {
        Allocator::Jemalloc => MALLOC_JEMALLOC,
        Allocator::System => MALLOC_SYSTEM,
    };
    own.push((ENV_MALLOC.into(), malloc.into()));
    if settings.cuda == CudaChoice::Off {
        own.push((ENV_CUDA.into(), CUDA_OFF.into()));
    }
    if let Some(skipped) = settings.cuda_skip {
        own.push((ENV_CUDA_SKIP.into(), skipped.to_string().into()));
    }
    if settings.aio == AioChoice::Off {
        own.push((ENV_AIO.into(), AIO_OFF.into()));
    }
    if settings.io_uring == IoUringChoice::Keep {
        own.push((ENV_IO_URING.into(), IO_URING_KEEP.into()));
    }
    for (name, signal) in [(ENV_SIGNAL, settings.signal), (ENV_ON_STOP, settings.stop_signal)] {
        if let Some(signal) = signal {
            own.push((name.into(), signal.to_string().into()));
        }
    }
    if settings.engine == EngineChoice::Slots {
        own.push((ENV_ENGINE.into(), ENGINE_SLOTS.into()));
    }
    own.extend(extra.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let mut entries = own_environment()?;
    entries.retain(|entry| {
        let name = entry.as_bytes().split(|&c| c == b'=').next().unwrap_or_default();
        let unset = [
            ENV_SIGNAL,
            ENV_ON_STOP,
            ENV_ENGINE,
            ENV_KEY,
            ENV_MEMBER_SOCKET,
            ENV_MEMBER_KEY,
            ENV_FILTERS,
            ENV_IO_URING,
            ENV_AIO,
            ENV_CUDA,
            ENV_CUDA_SKIP,
            ENV_SUPERVISED,
        ];
        !unset.iter().any(|unset| unset.as_bytes() == name)
            && !own.iter().any(|(own, _)| own.as_bytes() == name)
    });
    preload(&mut entries, &library)?;
    let given = std::env::var_os(ASAN_OPTIONS);
    if let Some(told) = for_address_sanitizer(given.as_deref()) {
        own.push((ASAN_OPTIONS.into(), told));
        entries.retain(|entry| !entry.as_bytes().starts_with(b"ASAN_OPTIONS="));
    }
    if let Some(level) = settings.cpu_baseline {
        baseline::tell(&mut entries, level)?;
    }
    for (name, value) in own {
        entries.push(variable(&name, &value)?);
    }
    Ok(entries)
}

/// What no other user can know. Only what root has started can have processes with other ids that may be looked at.
fn key() -> Result<Option<String>, Failure> {
    if unix_socket::effective_user() != 0 {
        return Ok(None);
    }
    let mut random = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
    read.map_err(|error| Failure::system("reading /dev/urandom", &error))?;
    Ok(Some(format!("{:032x}", u128::from_le_bytes(random))))
}

/// The entry with the job's key.
pub fn key_in(environment: &[CString]) -> Option<CString> {
    environment.iter().find(|entry| is_of(entry, ENV_KEY)).cloned()
}

const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// AddressSanitizer ends a program into which another library was loaded before its own (asan_linux.cpp,
/// AsanCheckDynamicRTPrereqs), unless it is told not to look. `None`: the user has told it one or the other.
fn for_address_sanitizer(given: Option<&OsStr>) -> Option<OsString> {
    const OPTION: &str = "verify_asan_link_order";
    let given = given.unwrap_or_default();
    if given.as_encoded_bytes().windows(OPTION.len()).any(|part| part == OPTION.as_bytes()) {
        return None;
    }
    let mut all = given.to_owned();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(OPTION);
    all.push("=0");
    Some(all)
}

/// Puts the library first in LD_PRELOAD.
fn preload(entries: &mut Vec<CString>, library: &Path) -> Result<(), Failure> {
    const NAME: &[u8] = b"LD_PRELOAD=";
    let mut value = OsString::from("LD_PRELOAD=");
    value.push(library);
    let Some(entry) = entries.iter_mut().find(|entry| entry.as_bytes().starts_with(NAME)) else {
        entries.push(c_string(&value)?);
        return Ok(());
    };
    use std::os::unix::ffi::OsStrExt;
    let others = &entry.as_bytes()[NAME.len()..];
    let library = library.as_os_str().as_bytes();
    for other in others.split(|c| b" :".contains(c)).filter(|other| !other.is_empty() && *other != library) {
        value.push(":");
        value.push(std::ffi::OsStr::from_bytes(other));
    }
    *entry = c_string(&value)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn address_sanitizer_is_told_once() {
        let told = |given: Option<&str>| for_address_sanitizer(given.map(OsStr::new));
        assert_eq!(told(None).unwrap(), "verify_asan_link_order=0");
        assert_eq!(told(Some("detect_leaks=0")).unwrap(), "detect_leaks=0:verify_asan_link_order=0");
        assert_eq!(told(Some("verify_asan_link_order=1:detect_leaks=0")), None);
    }

    #[test]
    fn the_library_comes_first_and_once() {
        let after = |before: &[&str]| {
            let mut entries: Vec<CString> = before.iter().map(|text| CString::new(*text).unwrap()).collect();
            preload(&mut entries, Path::new("/l.so")).unwrap();
            entries.into_iter().map(|entry| entry.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(after(&["A=1"]), ["A=1", "LD_PRELOAD=/l.so"]);
        assert_eq!(after(&["LD_PRELOAD=/x.so /y.so", "A=1"]), ["LD_PRELOAD=/l.so:/x.so:/y.so", "A=1"]);
        assert_eq!(after(&["LD_PRELOAD=/x.so:/l.so"]), ["LD_PRELOAD=/l.so:/x.so"]);
        assert_eq!(after(&["LD_PRELOAD="]), ["LD_PRELOAD=/l.so"]);
    }
}
