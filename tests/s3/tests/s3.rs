//! The remote tier at S3 servers: what every tier keeps, several writers, wrong credentials, a server that goes away.
//!
//! Settings come from the environment and from files that it names, as for users. So each test executes itself again
//! with an environment of its own.
#![allow(missing_docs)]

#[path = "../../../tiers/tests/all/common/conformance.rs"]
mod conformance;

use conformance::conforms;
use holdfast_s3_tests::{KEY, Server};
use holdfast_tiers::tier::address::{self, Address};
use holdfast_tiers::tier::{BlobName, Tier, TierError};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where the inner half of a test finds what the outer half has made.
const PLACE: &str = "HOLDFAST_TEST_S3";

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / 1001) as u8).collect()
}

/// A folder with a bucket, and what names the server to the tier.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Place {
        let path = std::env::temp_dir().join(format!("holdfast-s3-{}-{test}", std::process::id()));
        std::fs::create_dir_all(path.join("store/bucket")).unwrap();
        Place(path)
    }

    /// The files that users have in ~/.aws.
    fn write_files(&self, url: &str, secret: &str) {
        let credentials =
            format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {secret}\n", KEY.0);
        std::fs::create_dir_all(self.0.join(".aws")).unwrap();
        std::fs::write(self.0.join(".aws/credentials"), credentials).unwrap();
        let config = format!("[default]\nregion = here\nendpoint_url = {url}\n");
        std::fs::write(self.0.join(".aws/config"), config).unwrap();
    }

    /// Executes the test `test` of this file again.
    fn inner(&self, test: &str) -> Child {
        self.command(test).spawn().unwrap()
    }

    fn command(&self, test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env_clear().env("HOME", &self.0);
        command.env("AWS_ALLOW_HTTP", "true").env(PLACE, &self.0).stdout(Stdio::piped());
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The place in the inner half of a test.
fn inside() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

fn ended_well(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

fn open() -> Box<dyn Tier> {
    address::open(&Address::parse("s3://bucket/one/two").unwrap()).unwrap()
}

fn unfinished(root: &Path) -> usize {
    let entries = std::fs::read_dir(root.join("store")).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().contains(".part-")).count()
}

#[test]
fn an_s3_server_conforms() {
    if inside().is_some() {
        let tier = open();
        conforms(&*tier);
        assert_eq!(tier.info().single_writer, None);
        // A second writer finds the probe of the first.
        let again = open();
        again.publish(&name("sim/again"), b"m").unwrap();
        assert_eq!(again.info().single_writer, None);
        return;
    }
    let place = Place::new("conforms");
    let server = Server::start(&place.0.join("store"));
    place.write_files(&server.url, KEY.1);
    ended_well(place.inner("an_s3_server_conforms"));
}

#[test]
fn long_blobs_go_up_in_parts_and_replace_none() {
    if let Some(root) = inside() {
        let (tier, to, data) = (open(), name("sim/long"), bytes(37 << 20));
        let (mut first, mut second) =
            (tier.create(&to, None).unwrap(), tier.create(&to, Some(37 << 20)).unwrap());
        for piece in data.chunks(5 << 20) {
            first.append(piece).unwrap();
            second.append(piece).unwrap();
        }
        assert!(tier.list("sim").unwrap().blobs.is_empty());
        assert_eq!(second.finish().unwrap(), 37 << 20);
        assert!(matches!(first.finish(), Err(TierError::Exists { .. })));
        let mut read = vec![0; data.len() - 100];
        tier.open(&to).unwrap().read_at(100, &mut read).unwrap();
        assert!(read == data[100..]);
        let mut dropped = tier.create(&name("sim/dropped"), None).unwrap();
        dropped.append(&data).unwrap();
        drop(dropped);
        assert_eq!(tier.list("sim").unwrap().blobs.len(), 1);
        assert_eq!(unfinished(&root), 0, "parts are left");
        return;
    }
    let place = Place::new("long");
    let server = Server::start(&place.0.join("store"));
    place.write_files(&server.url, KEY.1);
    ended_well(place.inner("long_blobs_go_up_in_parts_and_replace_none"));
}

#[test]
fn of_two_processes_that_publish_one_name_one_does() {
    if inside().is_some() {
        let tier = open();
        for number in 0..20 {
            match tier.publish(&name(&format!("sim/m-{number}")), b"manifest") {
                Ok(()) => println!("won {number}"),
                Err(TierError::Exists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        return;
    }
    let place = Place::new("two");
    let server = Server::start(&place.0.join("store"));
    place.write_files(&server.url, KEY.1);
    let both = [(); 2].map(|()| place.inner("of_two_processes_that_publish_one_name_one_does"));
    let told: String = both.into_iter().map(ended_well).collect();
    let mut won: Vec<u32> =
        told.lines().filter_map(|line| line.split_once("won ")?.1.trim().parse().ok()).collect();
    won.sort_unstable();
    assert_eq!(won, (0..20).collect::<Vec<_>>());
}

#[test]
fn wrong_credentials_are_refused_and_not_shown() {
    if inside().is_some() {
        let error = open().list("sim").map(drop).unwrap_err();
        assert!(matches!(error, TierError::Denied { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("another-secret"), "{error:?}");
        return;
    }
    let place = Place::new("wrong");
    let server = Server::start(&place.0.join("store"));
    place.write_files(&server.url, "another-secret");
    ended_well(place.inner("wrong_credentials_are_refused_and_not_shown"));
}

#[test]
fn a_host_without_certificates_of_authorities_is_told_so() {
    if inside().is_some() {
        let opened = address::open(&Address::parse("s3://bucket/one").unwrap());
        let error = opened.and_then(|tier| tier.list("sim").map(drop)).unwrap_err();
        assert!(error.to_string().contains("ca-certificates"), "{error}");
        return;
    }
    let place = Place::new("certificates");
    place.write_files("https://127.0.0.1:1", KEY.1);
    // rustls-native-certs reads what these name, and nothing else.
    std::fs::write(place.0.join("none"), "").unwrap();
    let mut inner = place.command("a_host_without_certificates_of_authorities_is_told_so");
    inner.env("SSL_CERT_FILE", place.0.join("none"));
    ended_well(inner.spawn().unwrap());
}

#[test]
fn a_server_that_goes_away_in_the_middle_loses_nothing_that_was_published() {
    if let Some(root) = inside() {
        let place = std::mem::ManuallyDrop::new(Place(root));
        let server = Server::start(&place.0.join("store"));
        place.write_files(&server.url, KEY.1);
        let (tier, data) = (open(), bytes(20 << 20));
        tier.publish(&name("sim/m"), &data).unwrap();
        let blob = tier.open(&name("sim/m")).unwrap();
        let mut writer = tier.create(&name("sim/s"), None).unwrap();
        writer.append(&data).unwrap();
        server.set_up(false);
        let gone = |result: Result<(), TierError>| {
            assert!(result.as_ref().is_err_and(TierError::is_transient), "{result:?}");
        };
        gone(blob.read_at(0, &mut vec![0; data.len()]));
        gone((0..10).find_map(|_| writer.append(&data).err()).map_or(Ok(()), Err));
        gone(writer.finish().map(drop));
        gone(tier.publish(&name("sim/m2"), b"m"));
        gone(tier.list("sim").map(drop));
        // Opening a tier whose server is down is no error.
        let late = open();
        server.set_up(true);
        late.publish(&name("sim/m2"), b"m").unwrap();
        assert_eq!(late.info().single_writer, None);
        let mut read = vec![0; data.len()];
        blob.read_at(0, &mut read).unwrap();
        assert!(read == data);
        let found: Vec<_> = tier.list("sim").unwrap().blobs.into_iter().map(|blob| blob.name).collect();
        assert_eq!(found, [name("sim/m"), name("sim/m2")]);
        tier.clean("sim").unwrap();
        assert_eq!(unfinished(&place.0), 0, "parts are left");
        let mut again = tier.create(&name("sim/s"), None).unwrap();
        again.append(&data).unwrap();
        assert_eq!(again.finish().unwrap(), data.len() as u64);
        return;
    }
    let place = Place::new("away");
    ended_well(place.inner("a_server_that_goes_away_in_the_middle_loses_nothing_that_was_published"));
}
