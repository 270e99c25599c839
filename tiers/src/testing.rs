//! The tiers that unit tests use: files of `holdfast-lab`, compiled with this crate.
#![allow(dead_code)] // these tests use a part of them

#[path = "../lab/src/faulty.rs"]
mod faulty;
#[path = "../lab/src/model.rs"]
mod model;

pub use faulty::{Fault, Faults, Faulty};
pub use model::Model;
