//! Every kind of tier keeps what the trait promises.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{TempDir, conformance::conforms};
use holdfast_tiers::tier::{LocalTier, Survives, Tier};

#[test]
fn a_local_folder_conforms() {
    let dir = TempDir::new();
    let tier = LocalTier::open(&dir.store()).unwrap();
    conforms(&tier);
    assert_eq!(tier.info().survives, Survives::Host);
    // What is there is there for the next one, too.
    conforms(&LocalTier::open(&dir.store()).unwrap());
}
