//! `--on-spot`: at the notice of each cloud, as a server of this test imitates it, or of the user's command, an image
//! is taken and the program ended with status 75; without a service the program runs on, and that is said once.

use crate::plain_job::{self, JOB, as_user, right_output};
use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, wait};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The metadata service of a host.
struct Service {
    address: String,
    /// The machine is about to go.
    notice: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Service {
    fn start() -> Result<Service> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let (notice, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (says, counts) = (Arc::clone(&notice), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = serve(&stream, &says, &counts);
            }
        });
        Ok(Service { address, notice, asked })
    }
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, notice: &AtomicBool, asked: &AtomicUsize) -> Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(first) = lines.next() {
        let first = first?;
        let mut headers = String::new();
        for line in lines.by_ref() {
            let line = line?.to_lowercase();
            if line.is_empty() {
                break;
            }
            headers += &(line + "\n");
        }
        let (status, body) = answer(&first, &headers, notice.load(SeqCst));
        write!(
            &mut &*stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: keep-alive\r\n\r\n{body}",
            body.len()
        )?;
        asked.fetch_add(1, SeqCst);
    }
    Ok(())
}

fn answer(request: &str, headers: &str, notice: bool) -> (&'static str, String) {
    let has = |header: &str| headers.contains(header);
    let event = r#"{"EventId": "A", "EventType": "Preempt", "ResourceType": "VirtualMachine",
        "Resources": ["machine_7"], "EventStatus": "Scheduled", "NotBefore": "Mon, 18 Sep 2056 18:29:47 GMT"}"#;
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (is_known, body) = match path {
        "/latest/api/token" if request.starts_with("PUT ") => {
            (has("x-aws-ec2-metadata-token-ttl-seconds: "), "token-1".to_owned())
        }
        "/latest/meta-data/spot/instance-action" if !has("x-aws-ec2-metadata-token: token-1\n") => {
            return ("401 Unauthorized", String::new());
        }
        "/latest/meta-data/spot/instance-action" => {
            (notice, r#"{"action": "terminate", "time": "2056-09-18T08:22:00Z"}"#.to_owned())
        }
        "/computeMetadata/v1/instance/preempted" => {
            (has("metadata-flavor: google\n"), if notice { "TRUE" } else { "FALSE" }.to_owned())
        }
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text" => {
            (has("metadata: true\n"), "machine_7".to_owned())
        }
        "/metadata/scheduledevents?api-version=2020-07-01" => {
            let events = if notice { event } else { "" };
            (has("metadata: true\n"), format!(r#"{{"DocumentIncarnation": 1, "Events": [{events}]}}"#))
        }
        _ => (false, String::new()),
    };
    if is_known { ("200 OK", body) } else { ("404 Not Found", String::new()) }
}

/// The job, ended after an image, goes on to its right end.
fn goes_on(bed: &Bed) -> Result<()> {
    bed.may_end()?;
    bed.say(&["restart", JOB, "--stdio", "keep", "--on-spot", "none"])?.success()?;
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    bed.check_clean(JOB)
}

fn ends_at_the_notice(bed: &Bed, cloud: &str, variable: &str) -> Result<()> {
    let service = Service::start()?;
    let mut command = plain_job::command(bed, JOB, &["--on-spot", cloud, "--rate", "1M"])?;
    let (mut front, _) = plain_job::started(bed, JOB, command.env(variable, &service.address))?;
    bed.until("questions", PATIENCE, || service.asked.load(SeqCst) >= 3)?;
    ensure!(front.try_wait()?.is_none() && bed.images(JOB).is_empty(), "ended without a notice");
    service.notice.store(true, SeqCst);
    let status = wait(&mut front, PATIENCE)?;
    ensure!(status.code() == Some(75), "{status}: {}", bed.text("err"));
    ensure!(bed.text("err").contains("this machine goes in "), "{}", bed.text("err"));
    goes_on(bed)
}

#[test]
fn amazon() {
    as_user(|bed| ends_at_the_notice(bed, "aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT"));
}

#[test]
fn google() {
    as_user(|bed| ends_at_the_notice(bed, "gcp", "GCE_METADATA_HOST"));
}

#[test]
fn azure() {
    as_user(|bed| ends_at_the_notice(bed, "azure", "HOLDFAST_AZURE_METADATA"));
}

#[test]
fn what_would_need_longer_than_the_notice_leaves_is_in_an_image_ahead_of_it() {
    as_user(|bed| {
        let service = Service::start()?;
        // Nothing goes through in half of a minute.
        let tier = format!("dir={},rate=1K/s", bed.dir().join("work/tier").display());
        let mut command = plain_job::command(bed, JOB, &["--on-spot", "gcp", "--tier", &tier])?;
        let (mut front, pid) =
            plain_job::started(bed, JOB, command.env("GCE_METADATA_HOST", &service.address))?;
        // No --every, no signal, no request.
        bed.until("an image", PATIENCE, || !bed.images(JOB).is_empty())?;
        ensure!(front.try_wait()?.is_none() && !bed.text("err").contains("--on-spot"), "{}", bed.text("err"));
        service.notice.store(true, SeqCst);
        bed.until("how long it takes", PATIENCE, || bed.text("err").contains(" s at 1.0 KiB/s"))?;
        ensure!(bed.text("err").contains("the program ended; "), "{}", bed.text("err"));
        plain_job::kill_all(bed, JOB, &mut front, pid)
    });
}

#[test]
fn a_command_of_the_user_and_none_of_its_processes_is_left() {
    as_user(|bed| {
        // Once it waits, and is ended together with the job; then it tells.
        let notice = "echo asked >> asked; test -e notice || { test -e short || sleep 1000; exit 1; }";
        let (mut front, _) = plain_job::start(bed, &["--on-spot", notice])?;
        bed.until("the command", PATIENCE, || bed.text("asked") == "asked\n")?;
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.check_clean(JOB)?;
        fs::write(bed.work().join("short"), "")?;
        let (mut front, _) = plain_job::start(bed, &["--on-spot", notice])?;
        bed.until("the command, twice", PATIENCE, || bed.text("asked").lines().count() >= 3)?;
        fs::write(bed.work().join("notice"), "")?;
        let status = wait(&mut front, PATIENCE)?;
        ensure!(status.code() == Some(75), "{status}: {}", bed.text("err"));
        goes_on(bed)
    });
}

#[test]
fn where_nothing_answers_that_is_said_once() {
    as_user(|bed| {
        // A port that is taken, and at which nothing listens.
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        drop(taken);
        let mut command = plain_job::command(bed, JOB, &["--on-spot", "gcp"])?;
        let (mut front, _) = plain_job::started(bed, JOB, command.env("GCE_METADATA_HOST", &address))?;
        bed.until("the warning", PATIENCE, || bed.text("err").contains("--on-spot gcp: "))?;
        // From now on it answers: that it does is no news, and what it says counts.
        let listener = TcpListener::bind(&address).context("the port again")?;
        let stream = listener.accept()?.0;
        ensure!(bed.text("err").matches("--on-spot").count() == 1, "{}", bed.text("err"));
        serve(&stream, &AtomicBool::new(true), &AtomicUsize::new(0)).ok();
        let status = wait(&mut front, PATIENCE)?;
        ensure!(status.code() == Some(75), "{status}: {}", bed.text("err"));
        goes_on(bed)
    });
}
