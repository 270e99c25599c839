//! What a handle has: the client of its set, and the memory that was registered with it.
//!
//! # Safety
//! Memory is registered by address. Who registers it says with that, as `holdfast.h` demands, that it can be read until
//! it is unregistered, and written where it is restored into, and that no other thread writes to it meanwhile. Slices
//! of it are made for one copy, and never of a null pointer. Memory of a device is an address to the driver alone.
#![allow(unsafe_code)]

use super::device::DeviceMemory;
use holdfast_objects::buffer::Object;
use holdfast_objects::client::{Client, ClientOptions, Error};
use std::ffi::c_void;

/// Registered memory.
#[derive(Clone, Debug)]
struct Region {
    key: String,
    memory: Memory,
    bytes: usize,
    element: u64,
}

/// Where it is.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Host(usize),
    Device(u64),
}

impl Region {
    fn object(&self) -> Object {
        Object { key: self.key.clone(), bytes: self.bytes as u64, element: self.element }
    }

    fn put(&self, client: &mut Client) -> Result<(), Error> {
        match self.memory {
            Memory::Host(memory) => {
                // SAFETY: the registration's promise.
                let bytes = unsafe { readable(memory as *const c_void, self.bytes) };
                client.add(&self.key, bytes, self.element)
            }
            Memory::Device(at) => {
                let mut memory = DeviceMemory::at(at).map_err(failed)?;
                client.add_by(self.object(), |piece| memory.read(piece))
            }
        }
    }
}

fn failed(why: std::io::Error) -> Error {
    Error::System { call: "copy of device memory", why }
}

/// # Safety
/// There are so many bytes to be read, and none to write them, as long as the slice is used; `bytes` 0: any pointer.
unsafe fn readable<'a>(memory: *const c_void, bytes: usize) -> &'a [u8] {
    match bytes {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(memory.cast(), bytes) },
    }
}

/// # Safety
/// Likewise, to be written, and none to read them.
unsafe fn writable<'a>(memory: *mut c_void, bytes: usize) -> &'a mut [u8] {
    match bytes {
        0 => &mut [],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts_mut(memory.cast(), bytes) },
    }
}

/// One rank of a set, and its memory.
#[derive(Debug)]
pub struct Handle {
    client: Client,
    /// In the order of registration.
    regions: Vec<Region>,
}

impl Handle {
    /// Opens a set.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open(options: ClientOptions) -> Result<Handle, Error> {
        Ok(Handle { client: Client::open(options)?, regions: Vec::new() })
    }

    /// The client.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Registers memory, in place of what had this key.
    ///
    /// # Errors
    /// A null pointer with a size.
    ///
    /// # Safety
    /// The memory is there until it is unregistered.
    pub unsafe fn register(
        &mut self,
        key: &str,
        memory: *mut c_void,
        bytes: usize,
        element: usize,
    ) -> Result<(), Error> {
        if key.is_empty() || (memory.is_null() && bytes > 0) {
            return Err(Error::Argument(format!("region \"{key}\" of {bytes} bytes: no name, or no memory")));
        }
        self.add(key, Memory::Host(memory as usize), bytes, element);
        Ok(())
    }

    /// Registers memory of a device, in place of what had this key.
    ///
    /// # Errors
    /// Address 0 with a size.
    pub fn register_device(&mut self, key: &str, at: u64, bytes: usize, element: usize) -> Result<(), Error> {
        if key.is_empty() || (at == 0 && bytes > 0) {
            return Err(Error::Argument(format!("region \"{key}\" of {bytes} bytes: no name, or no memory")));
        }
        self.add(key, Memory::Device(at), bytes, element);
        Ok(())
    }

    fn add(&mut self, key: &str, memory: Memory, bytes: usize, element: usize) {
        let region = Region { key: key.to_owned(), memory, bytes, element: element.max(1) as u64 };
        match self.regions.iter_mut().find(|known| known.key == key) {
            Some(known) => *known = region,
            None => self.regions.push(region),
        }
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// There is none of this key.
    pub fn unregister(&mut self, key: &str) -> Result<(), Error> {
        self.region(key)?;
        self.regions.retain(|region| region.key != key);
        Ok(())
    }

    fn region(&self, key: &str) -> Result<Region, Error> {
        let found = self.regions.iter().find(|region| region.key == key).cloned();
        found.ok_or_else(|| Error::Argument(format!("no memory is registered as \"{key}\"")))
    }

    /// Begins a version.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub fn begin(&mut self, version: u64) -> Result<(), Error> {
        self.client.restored()?;
        let planned: Vec<Object> = self.regions.iter().map(Region::object).collect();
        self.client.begin(version, &planned)
    }

    /// Copies the regions of these keys into the version that was begun.
    ///
    /// # Errors
    /// One is not registered, or in the version already: none is copied. As [`Client::add`].
    pub fn put_some(&mut self, keys: &[&str]) -> Result<(), Error> {
        let regions = keys.iter().map(|key| self.region(key)).collect::<Result<Vec<_>, _>>()?;
        regions.iter().try_for_each(|region| region.put(&mut self.client))
    }

    /// Copies all regions that are not in the version that was begun.
    ///
    /// # Errors
    /// As [`Client::add`].
    pub fn put_rest(&mut self) -> Result<(), Error> {
        let Handle { client, regions } = self;
        let rest: Vec<&Region> = regions.iter().filter(|region| !client.has(&region.key)).collect();
        rest.into_iter().try_for_each(|region| region.put(client))
    }

    /// Puts all regions as a version.
    ///
    /// # Errors
    /// As [`Client::begin`], [`Client::add`], [`Client::end`]: the version is not there.
    pub fn put(&mut self, version: u64) -> Result<(), Error> {
        self.begin(version)?;
        if let Err(error) = self.put_rest() {
            // The first error is the one that counts.
            let _ = self.client.abandon();
            return Err(error);
        }
        self.client.end()
    }

    /// Has a version in a buffer, if it is not in one already.
    fn reach(&mut self, version: u64) -> Result<(), Error> {
        match self.client.restoring() == Some(version) {
            true => Ok(()),
            false => self.client.restore(version),
        }
    }

    /// Size of an object of a version, bytes.
    ///
    /// # Errors
    /// There is no such version, or no such object in it; it cannot be read.
    pub fn size(&mut self, version: u64, key: &str) -> Result<u64, Error> {
        self.reach(version)?;
        let set = self.client.set().to_owned();
        self.client.size(key).ok_or(Error::NoObject { set, version, key: key.to_owned() })
    }

    /// Copies a version into all registered regions.
    ///
    /// # Errors
    /// As [`Handle::size`]; a region is smaller than its object: nothing was copied.
    pub fn restore(&mut self, version: u64) -> Result<(), Error> {
        for region in self.regions.clone() {
            let (stored, wanted) = (self.size(version, &region.key)?, region.bytes as u64);
            if stored > wanted {
                return Err(Error::Size { key: region.key, version, stored, wanted });
            }
        }
        for region in self.regions.clone() {
            match region.memory {
                Memory::Host(memory) => {
                    let memory = memory as *mut c_void;
                    // SAFETY: the registration's promise.
                    unsafe { self.restore_into(version, &region.key, memory, region.bytes) }?;
                }
                Memory::Device(at) => {
                    let mut memory = DeviceMemory::at(at).map_err(failed)?;
                    self.reach(version)?;
                    self.client.copy_to(&region.key, &mut memory)?;
                }
            }
        }
        self.client.restored()
    }

    /// Copies an object of a version into memory, which may be larger; says how many bytes it has.
    ///
    /// # Errors
    /// As [`Handle::size`]; it is larger than the memory: nothing was copied.
    ///
    /// # Safety
    /// There are so many bytes, or `bytes` is 0.
    pub unsafe fn restore_into(
        &mut self,
        version: u64,
        key: &str,
        memory: *mut c_void,
        bytes: usize,
    ) -> Result<u64, Error> {
        if memory.is_null() && bytes > 0 {
            return Err(Error::Argument(format!("no memory for \"{key}\"")));
        }
        self.reach(version)?;
        // SAFETY: the caller's promise.
        self.client.copy(key, unsafe { writable(memory, bytes) })
    }
}
