//! Every kind of tier keeps what the trait promises.

use crate::common::{TempDir, conformance::conforms};
use holdfast_lab::{Faults, Faulty, Limits, Model, SystemClock, Throttled};
use holdfast_tiers::tier::{LocalTier, Survives, Tier};
use std::sync::Arc;

#[test]
fn a_local_folder_conforms() {
    let dir = TempDir::new();
    let tier = LocalTier::open(&dir.store()).unwrap();
    conforms(&tier);
    assert_eq!(tier.info().survives, Survives::Host);
    // What is there is there for the next one, too.
    conforms(&LocalTier::open(&dir.store()).unwrap());
}

#[test]
fn the_model_of_the_tests_and_every_layer_conform() {
    let model = || Box::new(Model::new("model"));
    conforms(&*model());
    conforms(&Throttled::new(model(), Limits::default(), Arc::new(SystemClock)));
    conforms(&Faulty::new(model(), Faults::none()));
}
