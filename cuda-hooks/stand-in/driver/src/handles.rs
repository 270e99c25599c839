//! The handles that a program has of the driver's objects. Used by `api` and by the objects.
//!
//! A handle is the object's address, as with the real driver, whose handles may be used again after they are destroyed.
//! The real driver often crashes at a handle that it does not know; here that is CUDA_ERROR_INVALID_HANDLE.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::code::{Answer, Code};

/// Objects of one kind by their handles.
pub struct Handles<T>(LazyLock<Mutex<HashMap<usize, Arc<T>>>>);

impl<T> Handles<T> {
    /// None yet.
    pub const fn new() -> Handles<T> {
        Handles(LazyLock::new(Mutex::default))
    }

    /// The handle of an object.
    pub fn of(object: &Arc<T>) -> usize {
        Arc::as_ptr(object).cast::<()>() as usize
    }

    /// Adds an object.
    pub fn add(&self, object: &Arc<T>) -> usize {
        let handle = Self::of(object);
        self.0.lock().insert(handle, Arc::clone(object));
        handle
    }

    /// The object of a handle.
    pub fn get(&self, handle: usize) -> Answer<Arc<T>> {
        self.0.lock().get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    /// Takes it out.
    pub fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        self.0.lock().remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Takes out those that do not fit.
    pub fn retain(&self, fits: impl Fn(&T) -> bool) {
        let gone: Vec<Arc<T>> = {
            let mut all = self.0.lock();
            let gone = all.values().filter(|it| !fits(it)).cloned().collect();
            all.retain(|_, it| fits(it));
            gone
        };
        drop(gone);
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().cloned().collect()
    }
}
