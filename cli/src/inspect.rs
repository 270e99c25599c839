//! What of a running program could not be checkpointed: who is asked, and how the answer is told.
//!
//! Called by `holdfast check` and `holdfast doctor --job`. The agent of the job answers, because it knows what the
//! program was started with; a process outside all jobs is looked at here. Fails by: [`Failure`], if there is nothing
//! to look at.

use crate::client::{Agent, accepted, job_of};
use crate::exit::{Exit, Failure};
use crate::names;
use crate::report::{short_time, size};
use holdfast_image::control::{Reply, Request};
use holdfast_image::cuda::DeviceMemory;
use holdfast_image::refusal::{Checked, Estimate, StopBy, one_per_object};
use holdfast_process::{CheckError, CheckOptions, ancestors, check};
use holdfast_tiers::{Job, Store};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// A program that was looked at.
#[derive(Debug)]
pub struct Inspected {
    /// Its job, if it has one.
    job: Option<String>,
    checked: Checked,
}

/// Looks at the program of a job, or at a process. A process that a job's program has started belongs to the job.
///
/// # Errors
/// There is no such job or process, the job does not run, or the process may not be looked at.
pub fn find(name_or_pid: &str, root: Option<&Path>) -> Result<Inspected, Failure> {
    let store = names::open_store(root)?;
    let named = names::open_job(&store, name_or_pid);
    let (Err(_), Some(pid)) = (&named, name_or_pid.parse().ok().filter(|&pid: &i32| pid > 0)) else {
        return ask(&named?);
    };
    let with_ancestors: Vec<i32> = std::iter::once(pid).chain(ancestors(pid)).collect();
    match job_of(&store, &with_ancestors)? {
        Some(job) => ask(&job),
        None => look(&store, pid),
    }
}

fn ask(job: &Job) -> Result<Inspected, Failure> {
    match accepted(job, Agent::connect(job)?.ask(&Request::Check)?)? {
        Reply::Checked(checked) => Ok(Inspected { job: Some(job.name().to_owned()), checked }),
        other => Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}"))),
    }
}

fn look(store: &Store, pid: i32) -> Result<Inspected, Failure> {
    let checked = check(&CheckOptions { pid, ..CheckOptions::default() }).map_err(|error| match error {
        CheckError::Gone { .. } => Failure::new(
            Exit::NotFound,
            format!("{error}, and no job in {} is called so; see `holdfast list`", store.root().display()),
        ),
        CheckError::Thread { .. } => Failure::new(Exit::NotFound, error.to_string()),
        CheckError::Foreign { .. } | CheckError::Closed { .. } => {
            Failure::new(Exit::Permission, error.to_string())
        }
    })?;
    let checked = Checked { findings: one_per_object(&checked.findings), ..checked };
    Ok(Inspected { job: None, checked })
}

impl Inspected {
    /// Whether a checkpoint could be taken.
    pub fn is_checkpointable(&self) -> bool {
        self.checked.findings.is_empty() && self.checked.left_out == 0
    }

    /// For `--json`.
    pub fn to_json(&self) -> Value {
        let Checked { pid, comm, findings, left_out, device_memory, notes, estimate } = &self.checked;
        json!({
            "job": self.job,
            "pid": pid,
            "comm": comm,
            "checkpointable": self.is_checkpointable(),
            "findings": findings,
            "left_out": left_out,
            "device_memory": device_memory,
            "notes": notes,
            "estimate": estimate,
        })
    }
}

/// What a checkpoint would take, in words.
fn line(estimate: &Estimate) -> String {
    let Estimate { memory_bytes, dirty_bytes, image_bytes, stop_ns, images, stop_by } = *estimate;
    let memory = match dirty_bytes < memory_bytes {
        true => {
            format!("{} of {} in memory written since the last image", size(dirty_bytes), size(memory_bytes))
        }
        false => format!("{} in memory", size(memory_bytes)),
    };
    let first = |stop: &str| format!("the first image: {memory}, before compression; {stop}");
    match (stop_ns.map(short_time), stop_by) {
        (Some(stop), Some(StopBy::EarlierRuns)) => {
            first(&format!("stop time about {stop} (as of the last {images} of earlier runs)"))
        }
        (Some(stop), Some(StopBy::OtherMachine)) => first(&format!(
            "stop time about {stop} (as on an H200 with driver 580.159.04; nothing was measured here yet)"
        )),
        (Some(stop), None) => format!(
            "the next image: {memory}, about {} on disk, stop time about {} (as of the last {images})",
            size(image_bytes),
            stop
        ),
        (None, _) => first("its stop time shows then"),
    }
}

impl fmt::Display for Inspected {
    /// A line per finding, then the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { pid, comm, findings, left_out, device_memory, notes, estimate } = &self.checked;
        for finding in findings {
            writeln!(f, "{finding}")?;
        }
        if *left_out > 0 {
            writeln!(f, "and {left_out} more")?;
        }
        if let Some(memory) = device_memory {
            of_devices(memory, f)?;
        }
        for note in notes {
            writeln!(f, "{note}")?;
        }
        let program = match &self.job {
            Some(job) => format!("job {job}, process {pid} ({comm})"),
            None => format!("process {pid} ({comm})"),
        };
        if let Some(estimate) = estimate.filter(|_| self.is_checkpointable()) {
            writeln!(f, "{}", line(&estimate))?;
        }
        match findings.len() + left_out {
            0 => writeln!(f, "{program}: a checkpoint could be taken now"),
            1 => writeln!(f, "{program}: a checkpoint would be refused because of 1 finding"),
            count => writeln!(f, "{program}: a checkpoint would be refused because of {count} findings"),
        }
    }
}

/// Who has device memory, and what that means for a checkpoint (docs/cuda.md).
fn of_devices(memory: &DeviceMemory, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let parts = [
        (
            memory.library,
            "kept by libholdfast: changes are copied to the host, and all of it back, while the program's calls wait",
        ),
        (
            memory.keeper,
            "kept by the keeper: changes are copied on the device, and stored while the program runs",
        ),
        (memory.driver, "kept by the driver: each checkpoint moves all of it to the host and back"),
    ];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    parts.into_iter().try_for_each(|(bytes, whose)| writeln!(f, "device memory: {}, {whose}", size(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::refusal::{Finding, Refusal, Subject};

    fn inspected(numbers: &[i32], left_out: usize) -> Inspected {
        let refusal = |fd: &i32| Refusal {
            subject: Subject::Descriptor { fd: *fd, name: "socket:[1]".into() },
            reason: "not supported yet".into(),
        };
        let findings = numbers.iter().map(|fd| Finding::new(7, "sim", refusal(fd))).collect();
        Inspected {
            job: Some("a".into()),
            checked: Checked {
                pid: 7,
                comm: "sim".into(),
                findings,
                left_out,
                device_memory: None,
                notes: Vec::new(),
                estimate: None,
            },
        }
    }

    #[test]
    fn the_last_line_is_the_verdict() {
        let good = inspected(&[], 0);
        assert!(good.is_checkpointable());
        assert_eq!(good.to_string(), "job a, process 7 (sim): a checkpoint could be taken now\n");
        let text = inspected(&[3, 9], 1).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "process 7 (sim): fd 3 (socket:[1]): not supported yet");
        assert_eq!(
            lines[2..],
            ["and 1 more", "job a, process 7 (sim): a checkpoint would be refused because of 3 findings"]
        );
        assert!(inspected(&[3], 0).to_string().ends_with("because of 1 finding\n"));
    }

    #[test]
    fn device_memory_is_told_of_by_owner() {
        let mut with = inspected(&[], 0);
        with.checked.device_memory = Some(DeviceMemory { library: 3 << 20, keeper: 0, driver: 1 << 30 });
        let text = with.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let library =
            "device memory: 3.0 MiB, kept by libholdfast: changes are copied to the host, and all of it back";
        assert!(lines[0].starts_with(library), "{text}");
        assert!(
            lines[1].starts_with("device memory: 1.0 GiB, kept by the driver: each checkpoint"),
            "{text}"
        );
        assert_eq!(lines.len(), 3);
        assert_eq!(with.to_json()["device_memory"]["driver"], 1 << 30);
    }

    #[test]
    fn what_a_checkpoint_would_take_is_said() {
        let first =
            Estimate { memory_bytes: 4096, dirty_bytes: 4096, image_bytes: 4096, ..Estimate::default() };
        let line_of = |estimate| {
            let mut inspected = inspected(&[], 0);
            inspected.checked.estimate = Some(estimate);
            inspected.to_string().lines().next().unwrap_or_default().to_owned()
        };
        let begin = "the first image: 4.0 KiB in memory, before compression; its stop time shows then";
        assert_eq!(line_of(first), begin);
        let earlier =
            Estimate { stop_ns: Some(5_000_000), images: 2, stop_by: Some(StopBy::EarlierRuns), ..first };
        assert!(line_of(earlier).ends_with("; stop time about 5.00 ms (as of the last 2 of earlier runs)"));
        let elsewhere = Estimate { stop_ns: Some(700_000_000), stop_by: Some(StopBy::OtherMachine), ..first };
        let line = line_of(elsewhere);
        assert!(
            line.contains("; stop time about 700.00 ms (as on an H200") && line.contains("measured"),
            "{line}"
        );
        let next =
            Estimate { dirty_bytes: 1024, image_bytes: 512, stop_ns: Some(2_000_000), images: 3, ..first };
        assert_eq!(
            line_of(next),
            "the next image: 1.0 KiB of 4.0 KiB in memory written since the last image, about 512 B on disk, \
             stop time about 2.00 ms (as of the last 3)"
        );
    }

    #[test]
    fn json_has_a_verdict_and_the_findings() {
        let value = inspected(&[3], 0).to_json();
        assert_eq!(value["checkpointable"], false);
        assert_eq!(value["findings"][0]["subject"]["fd"], 3);
        assert_eq!(inspected(&[], 0).to_json()["checkpointable"], true);
        assert!(!inspected(&[], 4).is_checkpointable());
    }
}
