//! Texture and surface objects: what they are of, as they were made. Used by `api::texture`.
//!
//! Kernels cannot read them here (`ptx` has no such instructions); a program can make, ask and end them, over arrays,
//! linear memory and rows, and has them after a restore. Rules: driver API, "Texture Object Management" and "Surface
//! Object Management". Not kept here: that the memory lasts as long as the object, which is the program's affair.

use std::sync::Arc;

use crate::array::ARRAYS;
use crate::code::{Answer, Code};
use crate::device;
use crate::handles::Handles;
use crate::layout::{ResourceDescription, ResourceView, TextureDescription};
use crate::memory::space;

/// `CUresourcetype`: of an array, of a mipmapped one, of linear memory, of rows.
const ARRAY: u32 = 0;
const LINEAR: u32 = 2;
const ROWS: u32 = 3;
/// `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT` and `..._TEXTURE_PITCH_ALIGNMENT`.
const ALIGNMENT: u32 = 14;
const PITCH_ALIGNMENT: u32 = 51;

/// All textures.
pub static TEXTURES: Handles<Texture> = Handles::new();
/// All surfaces.
pub static SURFACES: Handles<Surface> = Handles::new();

/// A texture object.
pub struct Texture {
    /// What it reads.
    pub resource: ResourceDescription,
    /// How.
    pub sampling: TextureDescription,
    /// As what, if that was said.
    pub view: Option<ResourceView>,
}

/// A surface object.
pub struct Surface {
    /// What it reads and writes.
    pub resource: ResourceDescription,
}

fn aligned(value: u64, attribute: u32) -> Answer {
    let unit = device::attribute(attribute).and_then(|unit| u64::try_from(unit).ok()).unwrap_or(1);
    if value.is_multiple_of(unit) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Bytes from an address on that the device has.
fn linear(address: u64, bytes: u64) -> Answer {
    let (at, mapping) = space::mapping(address).ok_or(Code::INVALID_VALUE)?;
    let inside = (address - at).checked_add(bytes).is_some_and(|end| end <= mapping.length);
    if inside && bytes > 0 { aligned(address, ALIGNMENT) } else { Err(Code::INVALID_VALUE) }
}

/// Whether there is such a resource.
fn check(of: &ResourceDescription) -> Answer {
    // "flags must be set to zero"
    if of.flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let [first, format, third, fourth, fifth, ..] = of.resource;
    let channels = format >> 32;
    let is_element = matches!(channels, 1 | 2 | 4);
    match of.kind {
        // a wrong array crashes a real driver
        ARRAY => ARRAYS.get(first as usize).map(drop),
        LINEAR if is_element => linear(first, third),
        ROWS if is_element => {
            aligned(fifth, PITCH_ALIGNMENT)?;
            linear(first, fifth.checked_mul(fourth).filter(|_| third <= fifth).ok_or(Code::INVALID_VALUE)?)
        }
        LINEAR | ROWS => Err(Code::INVALID_VALUE),
        // no mipmapped arrays here
        1 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

impl Texture {
    /// Makes one.
    pub fn new(
        resource: ResourceDescription,
        sampling: TextureDescription,
        view: Option<ResourceView>,
    ) -> Answer<Arc<Texture>> {
        check(&resource)?;
        // "pResViewDesc can only be specified if the type of resource is a CUDA array or a CUDA mipmapped array" is not
        // enforced by driver 580.159.04 on an H200.
        let texture = Arc::new(Texture { resource, sampling, view });
        TEXTURES.add(&texture);
        Ok(texture)
    }
}

impl Surface {
    /// Makes one: of an array alone. That it was made with CUDA_ARRAY3D_SURFACE_LDST (cuSurfObjectCreate wants it) is
    /// not enforced by driver 580.159.04 on an H200.
    pub fn new(resource: ResourceDescription) -> Answer<Arc<Surface>> {
        if resource.kind != ARRAY {
            return Err(Code::INVALID_VALUE);
        }
        check(&resource)?;
        ARRAYS.get(resource.resource[0] as usize)?;
        let surface = Arc::new(Surface { resource });
        SURFACES.add(&surface);
        Ok(surface)
    }
}
