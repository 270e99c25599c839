//! The model keeps what it promises.

use crate::model::{Damage, Model};
use holdfast_tiers::tier::{BlobName, Listing, Tier, TierError, TierInfo};
use std::collections::BTreeSet;

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

fn put(tier: &Model, text: &str, bytes: &[u8]) {
    let mut writer = tier.create(&name(text), None).unwrap();
    writer.append(bytes).unwrap();
    writer.finish().unwrap();
}

fn names(tier: &Model, folder: &str) -> Vec<String> {
    tier.list(folder).unwrap().blobs.iter().map(|entry| entry.name.to_string()).collect()
}

#[test]
fn a_power_cut_keeps_what_was_published_and_what_was_finished_before_that() {
    let tier = Model::new("model");
    put(&tier, "a/s1", &[1; 10]);
    put(&tier, "b/s1", &[1; 10]);
    tier.publish(&name("a/m1"), &[2]).unwrap();
    tier.remove(&name("a/s1")).unwrap();
    put(&tier, "a/s2", &[3; 10]);
    put(&tier, "a/s4", &[3; 10]);
    let _unfinished = tier.create(&name("a/s3"), None).unwrap().append(&[1; 10]);
    let seen: BTreeSet<Vec<String>> = (0..64)
        .map(|seed| {
            let after = tier.after_power_cut(seed);
            [names(&after, "a"), names(&after, "b")].concat()
        })
        .collect();
    assert_eq!(seen.len(), 8, "each of three is there or not: {seen:?}");
    let has = |names: &Vec<String>, one: &str| names.iter().any(|name| name == one);
    assert!(seen.iter().all(|names| has(names, "a/m1") && !has(names, "a/s1")));
    tier.publish(&name("a/m2"), &[2]).unwrap();
    for seed in 0..8 {
        assert_eq!(names(&tier.after_power_cut(seed), "a"), ["a/m1", "a/m2", "a/s2", "a/s4"]);
    }
}

#[test]
fn what_is_left_unfinished_takes_up_space_until_it_is_cleaned_away() {
    let tier = Model::of(TierInfo { capacity_bytes: Some(100), ..Model::new("model").info().clone() });
    let mut writer = tier.create(&name("a/s"), None).unwrap();
    writer.append(&[0; 60]).unwrap();
    assert!(matches!(writer.append(&[0; 60]), Err(TierError::Full { .. })));
    let after = tier.after_power_cut(0);
    drop(writer);
    assert_eq!((tier.used_bytes(), after.used_bytes()), (0, 60));
    assert_eq!((after.clean("b").unwrap(), after.clean("a").unwrap(), after.used_bytes()), (0, 60, 0));
    assert!(matches!(tier.publish(&name("a/m"), &[0; 101]), Err(TierError::Full { .. })));
}

#[test]
fn folders_are_listed_one_level_at_a_time() {
    let tier = Model::new("model");
    for text in ["top", "a/x", "a/b/y", "a/b/c/z", "ab/x"] {
        tier.publish(&name(text), &[]).unwrap();
    }
    let folders = |folder| tier.list(folder).unwrap().folders;
    assert_eq!((names(&tier, ""), folders("")), (vec!["top".to_owned()], vec!["a".into(), "ab".into()]));
    assert_eq!((names(&tier, "a"), folders("a")), (vec!["a/x".to_owned()], vec!["b".into()]));
    assert_eq!(tier.list("c").unwrap(), Listing::default());
}

#[test]
fn a_damaged_blob_is_damaged_after_a_power_cut_too() {
    let tier = Model::new("model");
    put(&tier, "x", &[1, 2, 3]);
    tier.damage(&name("x"), Damage::Flip(4));
    let after = tier.after_power_cut(1);
    let mut bytes = [0; 3];
    let blob = after.open(&name("x")).unwrap();
    blob.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 3, 3]);
    assert!(matches!(blob.read_at(1, &mut bytes), Err(TierError::Short { len: 3, .. })));
    assert!(matches!(blob.read_at(u64::MAX, &mut bytes), Err(TierError::Short { len: 3, .. })));
    tier.damage(&name("x"), Damage::Missing);
    assert!(matches!(tier.open(&name("x")), Err(TierError::NotFound { .. })));
}
