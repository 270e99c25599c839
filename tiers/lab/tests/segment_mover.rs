//! Segments over tiers by the policy's word, with real threads: every restore has the bytes that were written, whatever
//! the hints, whatever fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use holdfast_lab::{Call, Damage, Fault, Faults, Faulty, Model, Operation};
use holdfast_lab::{MoveError, MoverTier, SegmentMover};
use holdfast_tiers::policy::{PolicyError, SegmentId, TierLimits, Ties};
use holdfast_tiers::tier::{BlobName, Survives, Tier, TierError, TierInfo};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const FOLDER: &str = "objects/1";
/// Of the first two of three tiers.
const CAPACITY: [u64; 2] = [64 << 10, 160 << 10];
const PATIENCE: Duration = Duration::from_secs(120);

fn random(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// 4 to 20 KiB that no other segment has.
fn content(id: u64) -> Vec<u8> {
    let len = 4096 + id * 7919 % 16_384;
    (0..len).map(|at| (id.wrapping_mul(31) + at * at / 7) as u8).collect()
}

fn name(id: u64) -> BlobName {
    BlobName::new(&format!("{FOLDER}/segment-{id:016x}")).unwrap()
}

fn unavailable(object: String) -> TierError {
    TierError::Unavailable { object, why: "a fault of a test".into() }
}

/// Tiers that are no larger than the policy is told.
fn models() -> [Model; 3] {
    let model = |name: &str, capacity_bytes| {
        Model::of(TierInfo {
            name: name.into(),
            survives: Survives::Site,
            capacity_bytes,
            bandwidth: None,
            mappable: false,
            single_writer: None,
            read_only: None,
        })
    };
    [model("fast", Some(CAPACITY[0])), model("middle", Some(CAPACITY[1])), model("slow", None)]
}

fn start(models: &[Model; 3], faults: &Faults) -> SegmentMover {
    let tier = |model: &Model| {
        let limits =
            TierLimits { capacity: model.info().capacity_bytes, contiguous: false, rate: 1_000_000_000 };
        MoverTier { tier: Arc::new(Faulty::new(Box::new(model.clone()), faults.clone())), limits }
    };
    SegmentMover::start(models.iter().map(tier).collect(), FOLDER, Ties::default()).unwrap()
}

fn write(mover: &SegmentMover, id: u64) {
    mover.write(SegmentId(id), &content(id), false).unwrap();
}

fn restore(mover: &SegmentMover, id: u64) -> Result<(), MoveError> {
    let right = content(id);
    let mut buffer = vec![0; right.len()];
    mover.restore(SegmentId(id), &mut buffer)?;
    assert!(buffer == right, "segment {id} has other bytes");
    Ok(())
}

/// Writes, hints at anything and restores at random. Returns how many of its calls failed.
fn program(mover: &SegmentMover, number: u64, steps: u64) -> u64 {
    let (mut state, mut written, mut failed) = (number, Vec::new(), 0);
    for step in 0..steps {
        let any = random(&mut state, 4) * 1000 + random(&mut state, steps);
        match random(&mut state, 4) {
            0 => mover.hint(SegmentId(any)).unwrap(),
            1 => {
                let id = number * 1000 + step;
                match mover.write(SegmentId(id), &content(id), false) {
                    Ok(()) => written.push(id),
                    Err(_) => failed += 1,
                }
            }
            _ if written.is_empty() => mover.start_prefetch().unwrap(),
            _ => {
                let id = written[random(&mut state, written.len() as u64) as usize];
                failed += u64::from(restore(mover, id).is_err());
            }
        }
    }
    failed
}

fn programs(mover: &SegmentMover, steps: u64) -> u64 {
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|number| scope.spawn(move || program(mover, number, steps))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn count(model: &Model) -> usize {
    model.list(FOLDER).unwrap().blobs.len()
}

#[test]
fn every_restore_has_its_bytes_and_no_tier_gets_more_than_it_holds() {
    let (models, faults) = (models(), Faults::none());
    let mover = start(&models, &faults);
    assert_eq!(programs(&mover, 200), 0);
    assert!(mover.wait_flushed(PATIENCE));
    assert_eq!([0, 1, 2].map(|tier| mover.trouble(tier)), [None, None, None]);
    mover.stop();
    let written = faults.log().iter().filter(|operation| operation.call == Call::Create).count();
    assert!(count(&models[2]) > 100 && written > 2 * count(&models[2]), "{written}");
    assert!(models[0].used_bytes() <= CAPACITY[0] && models[1].used_bytes() <= CAPACITY[1]);
}

#[test]
fn what_fails_is_an_error_or_comes_from_elsewhere_and_is_never_wrong() {
    let (models, faults) = (models(), Faults::none());
    let mover = start(&models, &faults);
    let mut state = 5;
    faults.set(move |operation| match (random(&mut state, 100), operation.call) {
        (0, _) => Some(Fault::Fail(unavailable)),
        (1, Call::Append | Call::Read) => Some(Fault::Tear(100)),
        (1, Call::Finish | Call::Remove) => Some(Fault::LoseAnswer(unavailable)),
        _ => None,
    });
    programs(&mover, 60);
    faults.set(|_| None);
    assert!(mover.wait_flushed(PATIENCE));
    let names: Vec<_> = models[2].list(FOLDER).unwrap().blobs.into_iter().map(|blob| blob.name).collect();
    assert!(names.len() > 20);
    for name in names {
        let id = u64::from_str_radix(name.file().strip_prefix("segment-").unwrap(), 16).unwrap();
        restore(&mover, id).unwrap();
    }
    mover.stop();
}

#[test]
fn damage_is_found_and_the_next_tier_asked() {
    let models = models();
    let mover = start(&models, &Faults::none());
    write(&mover, 1);
    assert!(mover.wait_flushed(PATIENCE));
    for damage in [Damage::Flip(5000), Damage::Truncate(100)] {
        models[usize::from(damage != Damage::Flip(5000))].damage(&name(1), damage);
        restore(&mover, 1).unwrap();
    }
    assert_eq!(models.each_ref().map(count), [0, 0, 1], "what is damaged is removed");
    models[2].damage(&name(1), Damage::Flip(0));
    let error = restore(&mover, 1).unwrap_err().to_string();
    assert!(error.contains("slow/objects/1/segment-0000000000000001"), "{error}");
    assert!(mover.trouble(2).unwrap().contains("checksum"));
    mover.stop();
}

#[test]
fn a_write_goes_past_a_tier_that_refuses_and_fails_where_all_do() {
    let (models, faults) = (models(), Faults::none());
    let mover = start(&models, &faults);
    let mut refused = 0;
    faults.set(move |operation| {
        refused += u64::from(operation.call == Call::Create);
        (operation.call == Call::Create && refused == 1).then_some(Fault::Fail(unavailable))
    });
    write(&mover, 1);
    assert_eq!(count(&models[0]), 0);
    assert!(mover.trouble(0).is_some());
    restore(&mover, 1).unwrap();
    assert!(mover.wait_flushed(PATIENCE));
    faults.set(|operation| (operation.call == Call::Create).then_some(Fault::Fail(unavailable)));
    assert!(matches!(mover.write(SegmentId(2), &content(2), false), Err(MoveError::Tier(_))));
    assert!(matches!(restore(&mover, 2), Err(MoveError::Policy(PolicyError::Unknown(_)))));
    faults.set(|_| None);
    write(&mover, 2);
    restore(&mover, 2).unwrap();
    assert!(matches!(
        mover.write(SegmentId(2), &[1], false),
        Err(MoveError::Policy(PolicyError::Twice(SegmentId(2))))
    ));
    assert!(matches!(mover.restore(SegmentId(2), &mut [0; 3]), Err(MoveError::Length { buffer: 3, .. })));
    mover.stop();
}

#[test]
fn what_was_discarded_is_gone_and_may_be_written_again() {
    let (models, faults) = (models(), Faults::none());
    let mover = start(&models, &faults);
    // Nothing is flushed, and nothing has to be.
    let slower = |operation: &Operation| !operation.object.starts_with("fast");
    faults.set(move |operation| slower(operation).then_some(Fault::Fail(unavailable)));
    for id in 0..40 {
        mover.write(SegmentId(id), &content(id), true).unwrap();
        restore(&mover, id).unwrap();
    }
    faults.set(|_| None);
    assert!(mover.wait_flushed(PATIENCE));
    assert!(count(&models[2]) < 40);
    let mut gone = 0;
    for id in 0..40 {
        // What has made way is on no tier.
        if restore(&mover, id).is_err() {
            gone += 1;
            mover.write(SegmentId(id), &content(id), true).unwrap();
            restore(&mover, id).unwrap();
        }
    }
    assert!(gone > 20, "{gone}");
    mover.write(SegmentId(1000), &[], false).unwrap();
    mover.restore(SegmentId(1000), &mut []).unwrap();
    mover.stop();
}
