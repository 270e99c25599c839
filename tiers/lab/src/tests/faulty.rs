//! Faults come where they are wanted.

use crate::{Call, Fault, Faults, Faulty, Model};
use holdfast_tiers::tier::{BlobName, Tier, TierError};

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

/// Something like a commit: a segment, then a manifest.
fn commit(tier: &dyn Tier) -> Result<(), TierError> {
    let mut writer = tier.create(&name("a/segment"), Some(20))?;
    writer.append(&[1; 10])?;
    writer.append(&[2; 10])?;
    writer.finish()?;
    tier.publish(&name("a/manifest"), &[3; 5])
}

fn is_there(tier: &Model, text: &str) -> bool {
    tier.open(&name(text)).is_ok()
}

#[test]
fn every_boundary_can_be_a_death() {
    let counted = Faults::none();
    commit(&Faulty::new(Box::new(Model::new("model")), counted.clone())).unwrap();
    let calls: Vec<Call> = counted.log().iter().map(|operation| operation.call).collect();
    assert_eq!(calls, [Call::Create, Call::Append, Call::Append, Call::Finish, Call::Publish]);
    let mut leftover = Vec::new();
    for n in 0..counted.operations() {
        let model = Model::new("model");
        let faults = Faults::stop_at(n);
        let faulty = Faulty::new(Box::new(model.clone()), faults.clone());
        commit(&faulty).unwrap_err();
        assert!(faults.stopped() && faulty.list("a").is_err());
        assert_eq!((is_there(&model, "a/segment"), is_there(&model, "a/manifest")), (n == 4, false));
        leftover.push(model.clean("a").unwrap());
    }
    assert_eq!(leftover, [0, 0, 10, 20, 0], "what a dead user has left stays until it is cleaned away");
}

#[test]
fn a_lost_answer_is_an_error_after_which_the_blob_is_there() {
    let model = Model::new("model");
    let fault = Fault::LoseAnswer(|object| TierError::Unavailable { object, why: "lost".into() });
    let faulty = Faulty::new(Box::new(model.clone()), Faults::once(4, fault));
    commit(&faulty).unwrap_err();
    assert!(is_there(&model, "a/manifest"));
    assert!(matches!(faulty.publish(&name("a/manifest"), &[]), Err(TierError::Exists { .. })));
}

#[test]
fn an_append_may_be_torn_and_a_full_tier_have_room_again() {
    let model = Model::new("model");
    let faults = Faults::once(2, Fault::Tear(3));
    let faulty = Faulty::new(Box::new(model.clone()), faults.clone());
    let mut writer = faulty.create(&name("x"), None).unwrap();
    writer.append(&[1; 10]).unwrap();
    writer.append(&[1; 10]).unwrap_err();
    assert_eq!(model.used_bytes(), 13);
    drop(writer);
    assert_eq!(model.used_bytes(), 0, "it vanishes where its user goes on");
    faults.set(|_| Some(Fault::Fail(|object| TierError::Full { object })));
    assert!(matches!(commit(&faulty), Err(TierError::Full { .. })));
    faults.set(|_| None);
    commit(&faulty).unwrap();
    let blob = faulty.open(&name("a/segment")).unwrap();
    faults.set(|_| Some(Fault::Tear(11)));
    let mut bytes = [0; 20];
    blob.read_at(0, &mut bytes).unwrap_err();
    assert_eq!(bytes[9..12], [1, 2, 0]);
}

#[test]
fn the_seed_alone_decides_which_operations_fail() {
    let failed = |seed| {
        let faults = Faults::random(seed, 4, Fault::Fail(|object| TierError::NotFound { object }));
        let tier = Faulty::new(Box::new(Model::new("model")), faults);
        (0..200).filter(|_| tier.list("").is_err()).collect::<Vec<u64>>()
    };
    assert_eq!(failed(1), failed(1));
    assert_ne!(failed(1), failed(2));
    assert!((20..80).contains(&failed(1).len()));
}
