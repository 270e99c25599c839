//! Memory that a keeper holds for processes whose devices the driver has taken away: else another program could have it
//! by the time that they are restored, which the driver does not get over (docs/cuda.md).
//!
//! Used by [`super::process`]. Invariant: what is held is given up when it is asked for, when its process ends, and
//! with the keeper. Fails by: words.

use super::blocks::Blocks;
use holdfast_sys::cuda_memory::Device;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Granularity of physical memory.
const UNIT: u64 = 2 << 20;

/// By process.
#[derive(Default)]
pub struct Held(BTreeMap<i32, Vec<(Rc<Device>, u64)>>);

impl Held {
    /// Has so many bytes of a device.
    ///
    /// # Errors
    /// There is no such device, or not so much.
    pub fn hold(&mut self, blocks: &Blocks, owner: i32, uuid: [u8; 16], bytes: u64) -> Result<(), String> {
        let device = blocks.device(uuid).ok_or_else(|| "no driver is loaded for the device".to_owned())?;
        let made = device.create(bytes / UNIT * UNIT).map_err(|error| error.to_string())?;
        self.0.entry(owner).or_default().push((device, made));
        Ok(())
    }

    /// Gives it up.
    pub fn give(&mut self, owner: i32) {
        for (device, handle) in self.0.remove(&owner).unwrap_or_default() {
            // What cannot be given up ends with the keeper.
            let _ = device.release(handle);
        }
    }
}
