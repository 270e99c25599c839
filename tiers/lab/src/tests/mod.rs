//! Tests of the files that the unit tests of `holdfast-tiers` have, too.
#![allow(clippy::unwrap_used)]

mod faulty;
mod model;
