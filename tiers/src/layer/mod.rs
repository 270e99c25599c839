//! Layers: a tier around a tier, which changes how that one behaves.
//!
//! * [`Bounded`]: no larger than the user wants it.
//! * [`OnDemand`]: opened when it is used first.
//!
//! Called by what opens the tiers of a store, which puts layers around them as the settings say. Those of tests are in
//! `tiers/lab`: faults, a throttle, and a model of a tier below them.
//! Invariant: a layer keeps the promises of the door (`crate::tier`) if the tier below does.

mod bounded;
mod on_demand;

pub use bounded::{Bounded, MakeRoom};
pub use on_demand::OnDemand;
