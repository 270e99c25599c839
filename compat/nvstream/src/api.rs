//! The functions of C. What each does and returns is said in `include/nvs.h`.
//!
//! # Safety
//! Pointers are the program's, as the header demands: texts are null or end with a zero; memory has the size that is
//! said beside it; a reader is null or one that `nvs_open` has returned and `nvs_close` has not had. All that can be
//! looked at is: nulls, text that is no UTF-8, sizes.
#![allow(unsafe_code)]

use crate::producer::{Producer, error, place};
use holdfast_objects::boundary::{guarded, last, note};
use holdfast_objects::client::Error;
use holdfast_streams as streams;
use holdfast_streams::reader::{self, Reader};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static PRODUCER: Mutex<Option<Producer>> = Mutex::new(None);

fn producer() -> MutexGuard<'static, Option<Producer>> {
    PRODUCER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn code(error: &streams::Error) -> c_int {
    match error {
        streams::Error::Argument(_) => -5,
        streams::Error::NoVersion { .. }
        | streams::Error::NoStream { .. }
        | streams::Error::NoObject { .. } => -7,
        streams::Error::Size { .. } => -8,
        streams::Error::Forked => -12,
        _ => -4,
    }
}

/// What a call may say besides an error of a stream: that it is out of order.
enum Wrong {
    Stream(streams::Error),
    State(&'static str),
}

impl From<streams::Error> for Wrong {
    fn from(error: streams::Error) -> Wrong {
        Wrong::Stream(error)
    }
}

/// Does something; negative: what is wrong with it, which is noted.
fn number(act: impl FnOnce() -> Result<i64, Wrong>) -> i64 {
    let mut said = -4;
    let done = guarded(|| {
        act().map_err(|wrong| match wrong {
            Wrong::Stream(why) => {
                said = i64::from(code(&why));
                error(why)
            }
            Wrong::State(why) => {
                said = -11;
                Error::State(why.to_owned())
            }
        })
    });
    done.unwrap_or_else(|error| {
        note(&error);
        said
    })
}

fn int(act: impl FnOnce() -> Result<i64, Wrong>) -> c_int {
    c_int::try_from(number(act)).unwrap_or(-4)
}

/// Does something with the stream of this process.
fn with<T>(act: impl FnOnce(&mut Producer) -> Result<T, streams::Error>) -> Result<T, Wrong> {
    match producer().as_mut() {
        None => Err(Wrong::State("nvs_init() has not been called, or has failed, and said why")),
        Some(own) if !own.is_own() => Err(streams::Error::Forked.into()),
        Some(own) => Ok(act(own)?),
    }
}

/// # Safety
/// Null, or a text that ends with a zero and stays as it is during the call.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, streams::Error> {
    if pointer.is_null() {
        return Err(streams::Error::Argument(format!("{what} is NULL")));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(pointer) };
    let wrong = |_| streams::Error::Argument(format!("{what} is not UTF-8: {}", text.to_string_lossy()));
    text.to_str().map_err(wrong)
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_init(store_id: *const c_char) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let id = unsafe { text(store_id, "the name of the stream") }?;
        let mut own = producer();
        if own.as_ref().is_some_and(Producer::is_own) {
            return Err(Wrong::State("nvs_init() was called already: nvs_finalize() first"));
        }
        // A child of fork has the parent's: it is left as it is, as its memory is the program's.
        std::mem::forget(own.take());
        *own = Some(Producer::open(id)?);
        Ok(0)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_create_obj(key: *const c_char, size: usize) -> *mut c_void {
    let mut made = std::ptr::null_mut();
    int(|| {
        // SAFETY: as the caller says.
        let key = unsafe { text(key, "the name of the object") }?;
        made = with(|own| own.create(key, size))?;
        Ok(0)
    });
    made.cast()
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_put(key: *const c_char) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let key = unsafe { text(key, "the name of the object") }?;
        with(|own| own.put(Some(key)))?;
        Ok(0)
    })
}

/// Takes no pointer.
#[unsafe(no_mangle)]
pub extern "C" fn nvs_snapshot() -> c_int {
    int(|| with(|own| own.put(None)).map(|()| 0))
}

/// Takes no pointer.
#[unsafe(no_mangle)]
pub extern "C" fn nvs_version() -> u64 {
    u64::try_from(number(|| with(|own| Ok(own.version())).map(u64::cast_signed))).unwrap_or(0)
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_get(key: *const c_char, version: u64, into: *mut c_void, size: usize) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let key = unsafe { text(key, "the name of the object") }?;
        if into.is_null() {
            return Err(streams::Error::Argument("the memory to copy to is NULL".to_owned()).into());
        }
        with(|own| {
            let reader = own.reader(version)?;
            let bytes = reader.read(key)?;
            if bytes.len() > size {
                let (key, version) = (key.to_owned(), reader.version());
                let (is, asked) = (bytes.len() as u64, size as u64);
                return Err(streams::Error::Size { key, version, is, asked });
            }
            // SAFETY: the header's promise: as many bytes may be written there.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len()) };
            Ok(())
        })?;
        Ok(0)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_size(key: *const c_char, version: u64) -> i64 {
    number(|| {
        // SAFETY: as the caller says.
        let key = unsafe { text(key, "the name of the object") }?;
        let size = with(|own| {
            let reader = own.reader(version)?;
            let missing = || streams::Error::NoObject { key: key.to_owned(), version: reader.version() };
            reader.objects().get(key).copied().ok_or_else(missing)
        })?;
        Ok(i64::try_from(size).unwrap_or(i64::MAX))
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_newest_whole(name: *const c_char, ranks: c_uint, version: *mut u64) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of the stream") }?;
        let found = reader::newest_whole(&place(name)?, ranks)?;
        let found = found.ok_or(streams::Error::NoVersion { version: 0, oldest: 0, newest: 0 })?;
        // SAFETY: null, or a number of the caller's.
        if let Some(version) = unsafe { version.as_mut() } {
            *version = found;
        }
        Ok(0)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_free_obj(key: *const c_char) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let key = unsafe { text(key, "the name of the object") }?;
        with(|own| own.free(key))?;
        Ok(0)
    })
}

/// Takes no pointer.
#[unsafe(no_mangle)]
pub extern "C" fn nvs_finalize() -> c_int {
    int(|| {
        with(|_| Ok(()))?;
        drop(producer().take());
        Ok(0)
    })
}

/// What `nvs_reader *` points to.
#[derive(Debug)]
pub struct OpenReader {
    reader: Reader,
    /// The name that `nvs_object` has given last.
    key: CString,
}

/// # Safety
/// As the head of this file says.
unsafe fn opened<'a>(reader: *mut OpenReader) -> Result<&'a mut OpenReader, streams::Error> {
    // SAFETY: as the caller says, and no other thread uses it meanwhile.
    unsafe { reader.as_mut() }.ok_or_else(|| streams::Error::Argument("the reader is NULL".to_owned()))
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_open(store_id: *const c_char) -> *mut OpenReader {
    let mut made = std::ptr::null_mut();
    int(|| {
        // SAFETY: as the caller says.
        let id = unsafe { text(store_id, "the name of the stream") }?;
        let name = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let reader = Reader::open(&place(id)?, name.as_deref().unwrap_or("a program"))?;
        made = Box::into_raw(Box::new(OpenReader { reader, key: CString::default() }));
        Ok(0)
    });
    made
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_next(reader: *mut OpenReader, timeout_ms: c_int, version: *mut u64) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let open = unsafe { opened(reader) }?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let Some(found) = open.reader.wait(until)? else { return Ok(0) };
        // SAFETY: null, or a number of the caller's.
        if let Some(version) = unsafe { version.as_mut() } {
            *version = found.number;
        }
        Ok(1)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_seek(reader: *mut OpenReader, version: u64) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        unsafe { opened(reader) }?.reader.seek(version)?;
        Ok(0)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_at(reader: *mut OpenReader) -> u64 {
    // SAFETY: as the caller says.
    u64::try_from(number(|| Ok(unsafe { opened(reader) }?.reader.version().cast_signed()))).unwrap_or(0)
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_map(
    reader: *mut OpenReader,
    key: *const c_char,
    size: *mut usize,
) -> *const c_void {
    let mut found = std::ptr::null();
    int(|| {
        // SAFETY: as the caller says.
        let (open, key) = unsafe { (opened(reader)?, text(key, "the name of the object")?) };
        let (address, bytes) = open.reader.address(key)?;
        // SAFETY: null, or a number of the caller's.
        if let Some(size) = unsafe { size.as_mut() } {
            *size = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        found = address.cast();
        Ok(0)
    });
    found
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_object(
    reader: *mut OpenReader,
    index: usize,
    key: *mut *const c_char,
    size: *mut usize,
) -> c_int {
    int(|| {
        // SAFETY: as the caller says.
        let open = unsafe { opened(reader) }?;
        let Some((name, bytes)) = open.reader.objects().into_iter().nth(index) else { return Ok(-7) };
        open.key = CString::new(name).unwrap_or_default();
        // SAFETY: null, or places of the caller's.
        unsafe {
            if let Some(key) = key.as_mut() {
                *key = open.key.as_ptr();
            }
            if let Some(size) = size.as_mut() {
                *size = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
        }
        Ok(0)
    })
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_has_producer(reader: *mut OpenReader) -> c_int {
    // SAFETY: as the caller says.
    int(|| Ok(i64::from(unsafe { opened(reader) }?.reader.has_writer()?)))
}

/// # Safety
/// As the head of this file says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvs_close(reader: *mut OpenReader) {
    int(|| {
        if !reader.is_null() {
            // SAFETY: from `nvs_open`, and not closed before.
            drop(unsafe { Box::from_raw(reader) });
        }
        Ok(0)
    });
}

/// Takes no pointer.
#[unsafe(no_mangle)]
pub extern "C" fn nvs_error() -> *const c_char {
    last()
}
