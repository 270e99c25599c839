//! Texture and surface objects.

use crate::code::Answer;
use crate::handles::Handles;
use crate::layout::{ResourceDescription, ResourceView, TextureDescription};
use crate::pointer::{In, Out};
use crate::texture::{SURFACES, Surface, TEXTURES, Texture};

pub fn create(
    texture: Out<u64>,
    resource: In<ResourceDescription>,
    sampling: In<TextureDescription>,
    view: In<ResourceView>,
) -> Answer {
    texture.require()?;
    // a null pointer is no view
    texture.put(Handles::of(&Texture::new(resource.get()?, sampling.get()?, view.get().ok())?) as u64)
}

pub fn destroy(texture: u64) -> Answer {
    TEXTURES.remove(texture as usize).map(drop)
}

pub fn resource(resource: Out<ResourceDescription>, texture: u64) -> Answer {
    resource.put(TEXTURES.get(texture as usize)?.resource)
}

pub fn sampling(sampling: Out<TextureDescription>, texture: u64) -> Answer {
    sampling.put(TEXTURES.get(texture as usize)?.sampling)
}

/// "returns an error if ... no resource view was specified" (cuTexObjectGetResourceViewDesc), but driver 580.159.04 on
/// an H200 returns none; what it writes is not known.
pub fn view(view: Out<ResourceView>, texture: u64) -> Answer {
    view.put(TEXTURES.get(texture as usize)?.view.unwrap_or(ResourceView([0; 14])))
}

pub fn create_surface(surface: Out<u64>, resource: In<ResourceDescription>) -> Answer {
    surface.require()?;
    surface.put(Handles::of(&Surface::new(resource.get()?)?) as u64)
}

pub fn destroy_surface(surface: u64) -> Answer {
    SURFACES.remove(surface as usize).map(drop)
}

pub fn surface_resource(resource: Out<ResourceDescription>, surface: u64) -> Answer {
    resource.put(SURFACES.get(surface as usize)?.resource)
}
