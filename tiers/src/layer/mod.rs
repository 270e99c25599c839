//! Layers: a tier around a tier, which changes how that one behaves.
//!
//! * [`Throttled`]: no faster than a rate, with a delay before each call.
//! * [`OnDemand`]: opened when it is used first.
//! * [`Verified`]: what was written is read back before it counts as written.
//! * [`Faulty`], with [`Model`], a tier in memory that can lose what was not durable: for tests.
//!
//! Called by what opens the tiers of a store, which puts layers around them as the settings say; by tests.
//! Invariant: a layer keeps the promises of the door (`crate::tier`) if the tier below does, but for [`Faulty`].

mod bounded;
mod faulty;
mod model;
mod on_demand;
mod throttled;
mod verified;

pub use bounded::{Bounded, MakeRoom};
pub use faulty::{Call, Fault, Faults, Faulty, Operation};
pub use model::{Damage, Model};
pub use on_demand::OnDemand;
pub use throttled::{Clock, Limits, SystemClock, Throttled};
pub use verified::{Depth, Verified};
