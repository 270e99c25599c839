//! Runs of an ensemble: what the first one shows is kept, and the next one obeys the plan for it.

use super::super::ensemble::build_of;
use super::*;
use holdfast_image::Epoch;
use holdfast_image::manifest::FlushFigures;
use holdfast_tiers::codec::Codec;
use holdfast_tiers::policy::{
    BufferLimits, Choice, CodecCurve, Objective, Profile, Sample, SegmentId, schedule,
};
use holdfast_tiers::{Job, KnownRun, rank_name};
use std::os::unix::fs::PermissionsExt;

fn build() -> String {
    build_of(std::process::id().cast_signed()).unwrap()
}

fn job(world: &World) -> Job {
    world.server.store.create_job(&rank_name("set", 0)).unwrap()
}

fn image(world: &World, epoch: u64) -> FlushFigures {
    *job(world).open_image(Epoch(epoch)).unwrap().figures()
}

impl Client {
    /// A version that packs well, and of which no page is as before.
    fn put_text(&mut self, version: u64) {
        let buffer = self.room(version);
        let (layout, file) = (layout(self.rank, version, self.ranks, self.run), &self.files[&buffer]);
        let words = (0..BYTES / 8).map(|at| (version << 32) | (at / 512) | 1 << 31);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        file.write_all_at(&bytes, layout.places[0]).unwrap();
        file.write_all_at(&layout.table, HEAD).unwrap();
        file.write_all_at(&layout.head(BufferState::Put), 0).unwrap();
        self.tell(&Request::Put { buffer, ahead: false });
        // Requests are done one after the other.
        self.ask(&Request::IsFinished);
    }

    fn wait(&mut self) {
        assert_eq!(self.ask(&Request::Wait), Answer::Done);
    }
}

impl World {
    pub(super) fn segment(&self, version: u64) -> Option<SegmentId> {
        let state = self.server.state.lock();
        let mut held = state.held.iter();
        held.find(|(_, held)| held.version == version).map(|(segment, _)| *segment)
    }

    fn is_stored(&self, version: u64) -> bool {
        let segment = self.segment(version);
        let state = self.server.state.lock();
        segment.and_then(|segment| state.held.get(&segment)).is_some_and(|held| held.stored.is_some())
    }

    fn ran(&self) -> String {
        self.server.state.lock().courses.ran("set", 0)
    }

    /// The client of rank 0 has gone, and what its run has shown is kept.
    fn end(&self, client: Client) {
        drop(client);
        self.wait_until("the client is there", |world| {
            world.server.state.lock().sets["set"].clients.is_empty()
        });
        self.server.keep_profiles(false);
    }
}

/// Of two versions that pack well behind one that does not: a codec that is slow on little, a link that is slower.
fn profile() -> Profile {
    let sample = |compressed| Sample { interval_ns: 1_000_000, bytes: BYTES, compressed };
    Profile {
        samples: vec![sample(BYTES), sample(1000), sample(1000)],
        codec: CodecCurve { curve: vec![(1, 50_000_000), (1 << 20, 60_000_000)], temporary_per_mille: 0 },
        rate: 1_000_000,
    }
}

/// A server that knows the last run of this program.
fn planned() -> (World, KnownRun) {
    let world = World::new(64);
    // The tests have no clock.
    world.server.state.lock().courses.most_held = Duration::from_secs(3600);
    let known = KnownRun { profile: profile(), codec: Codec::Lz4 as u32, ran: String::new() };
    job(&world).keep_known_run(&build(), &known).unwrap();
    (world, known)
}

#[test]
fn versions_go_to_the_store_by_the_plan_for_their_profile() {
    let limits = BufferLimits { buffer: 64 * BYTES, most_together: 8, grain_ns: 1000 };
    let plan = schedule(&profile(), &limits, Objective::FlushEnd).unwrap();
    assert_eq!(plan.choices, [Choice::Raw, Choice::Compress(2)], "what the test is about");
    let (world, known) = planned();
    let mut client = world.client(0, 1);
    client.put_text(1);
    world.wait_until("version 1 is not stored", |world| world.is_stored(1));
    client.put_text(2);
    let second = world.segment(2).unwrap();
    assert!(world.server.state.lock().is_held_back(second), "it is accumulated first");
    assert!(!world.is_stored(2));
    client.put_text(3);
    world.wait_until("version 3 is not stored", |world| world.is_stored(2) && world.is_stored(3));
    assert_eq!(world.ran(), "U, A2");
    let packed = |epoch| image(&world, epoch).bytes_compressed_from;
    assert_eq!([1, 2, 3].map(packed), [0, BYTES, BYTES]);
    world.end(client);
    assert_eq!(job(&world).known_run(&build()).unwrap().unwrap(), KnownRun { ran: "U, A2".into(), ..known });
}

#[test]
fn who_waits_for_the_store_waits_for_no_others() {
    let (world, _) = planned();
    let mut client = world.client(0, 1);
    client.put_text(1);
    client.put_text(2);
    client.wait();
    assert!(world.is_stored(2));
    assert_eq!(world.ran(), "U, C");
}

/// A first run, in a world of its own.
fn first_run() -> (World, KnownRun, [u64; 2]) {
    let world = World::new(64);
    let mut client = world.client(0, 1);
    for version in 1..=6 {
        client.put_text(version);
    }
    client.wait();
    world.end(client);
    let known = job(&world).known_run(&build()).unwrap().unwrap();
    assert_eq!((known.profile.samples.len(), known.ran.as_str()), (6, "6 P"));
    let packed = [1, 2].map(|epoch| image(&world, epoch).bytes_compressed_from);
    (world, known, packed)
}

#[test]
fn the_first_run_is_profiled_and_a_run_that_differs_is_so_again() {
    // Where the processor was slower than the disk for a moment, packing was not worth its time.
    let (world, known, packed) = (0..20).map(|_| first_run()).find(|(_, _, packed)| packed[0] > 0).unwrap();
    assert_eq!(packed, [BYTES, 0], "both ways are tried");
    // Not all of them were packed; all would become as little as the first one.
    let is_small = |sample: &Sample| sample.bytes == BYTES && sample.compressed < BYTES / 2;
    assert!(known.profile.samples.iter().all(is_small), "{:?}", known.profile.samples);
    let path = job(&world).known_runs().unwrap().remove(0).1;
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);

    // Sizes are a tenth of those that are expected.
    let expected = Sample { interval_ns: 1, bytes: 10 * BYTES, compressed: BYTES };
    let other = Profile { samples: vec![expected; 6], ..known.profile.clone() };
    job(&world).keep_known_run(&build(), &KnownRun { profile: other, ..known }).unwrap();
    let mut client = world.client(0, 1);
    for version in 11..=16 {
        client.put_text(version);
        client.wait();
    }
    assert!(world.ran().ends_with("P"), "{}", world.ran());
    world.end(client);
    assert!(job(&world).known_run(&build()).unwrap().unwrap().profile.samples.is_empty());
}

#[test]
fn a_broken_profile_is_as_none() {
    let world = World::new(64);
    for broken in ["", "holdfast profile 1 0000000000000000\n{}", "\0\0\0\0"] {
        let path = job(&world).dir().join(format!("profile-{}", build()));
        fs::write(path, broken).unwrap();
        assert!(job(&world).known_run(&build()).is_err());
        let mut client = world.client(0, 1);
        client.put_text(1);
        client.wait();
        world.end(client);
        assert_eq!(job(&world).known_run(&build()).unwrap().unwrap().ran, "P");
    }
}
