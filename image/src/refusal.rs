//! What a checkpoint cannot contain, and why: a line of a refused checkpoint, or a finding of `holdfast check`.
//!
//! Made by `process`, carried by the agent's messages ([`crate::control`]), printed by the commands. What must hold:
//! both commands say the same words of the same thing, so there is one text, the [`Display`](fmt::Display) of a
//! [`Refusal`].

use crate::cuda::DeviceMemory;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;

/// What it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// A whole process: the program, or a child of it.
    Process {
        /// Its id.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A thread.
    Thread {
        /// Its id.
        tid: i32,
    },
    /// An open file.
    Descriptor {
        /// Its number.
        fd: i32,
        /// What /proc says that it leads to.
        name: String,
    },
    /// A mapping.
    Mapping {
        /// First byte.
        start: u64,
        /// First byte after it.
        end: u64,
        /// What /proc says that it is of.
        name: String,
    },
    /// The file of the program.
    Executable {
        /// Where it was.
        path: String,
    },
    /// Something of one of several processes.
    Of {
        /// Id of the process.
        pid: i32,
        /// Its name.
        comm: String,
        /// What of it.
        subject: Box<Subject>,
    },
}

impl Subject {
    /// Whether both are of one thing, though it may have grown or changed its name.
    pub fn is(&self, other: &Subject) -> bool {
        use Subject::{Descriptor, Executable, Mapping, Of, Process, Thread};
        match (self, other) {
            (Process { pid: one, .. }, Process { pid: two, .. })
            | (Thread { tid: one }, Thread { tid: two })
            | (Descriptor { fd: one, .. }, Descriptor { fd: two, .. }) => one == two,
            (Mapping { start, end, .. }, Mapping { start: from, end: to, .. }) => start < to && from < end,
            (Executable { .. }, Executable { .. }) => true,
            (Of { pid, subject, .. }, Of { pid: other, subject: of_other, .. }) => {
                pid == other && subject.is(of_other)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Process { pid, comm } => write!(f, "process {pid} ({comm})"),
            Subject::Thread { tid } => write!(f, "thread {tid}"),
            Subject::Descriptor { fd, name } => write!(f, "fd {fd} ({name})"),
            Subject::Mapping { start, end, name } => write!(f, "mapping {start:#x}-{end:#x} ({name})"),
            Subject::Executable { path } => write!(f, "executable {path}"),
            Subject::Of { pid, comm, subject } => write!(f, "process {pid} ({comm}): {subject}"),
        }
    }
}

/// One thing that a checkpoint cannot contain, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// What.
    pub subject: Subject,
    /// Why, and what to do about it where something can be done.
    pub reason: String,
}

impl Refusal {
    /// The same, with the name of the process: where there are several.
    #[must_use]
    pub fn of(self, pid: i32, comm: &str) -> Refusal {
        match self.subject {
            Subject::Process { .. } | Subject::Of { .. } => self,
            subject => Refusal {
                subject: Subject::Of { pid, comm: comm.to_owned(), subject: Box::new(subject) },
                ..self
            },
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.reason)
    }
}

/// A refusal, with the process that it is about or that holds the thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Id of the process.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// What cannot be checkpointed, and why.
    #[serde(flatten)]
    pub refusal: Refusal,
}

impl Finding {
    /// A finding in the process `pid`, or in the one that the refusal is about.
    pub fn new(pid: i32, comm: &str, refusal: Refusal) -> Finding {
        match &refusal.subject {
            Subject::Process { pid, comm } => Finding { pid: *pid, comm: comm.clone(), refusal },
            _ => Finding { pid, comm: comm.to_owned(), refusal },
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refusal.subject {
            Subject::Process { .. } => write!(f, "{}", self.refusal),
            _ => write!(f, "process {} ({}): {}", self.pid, self.comm, self.refusal),
        }
    }
}

/// Something that is said of one object of a process.
pub trait OfObject {
    /// Id of the process, where it is told; the object; what is said.
    fn parts(&self) -> (i32, &Subject, &str);
}

impl OfObject for Refusal {
    fn parts(&self) -> (i32, &Subject, &str) {
        match &self.subject {
            Subject::Of { pid, subject, .. } => (*pid, subject, &self.reason),
            subject => (0, subject, &self.reason),
        }
    }
}

impl OfObject for Finding {
    fn parts(&self) -> (i32, &Subject, &str) {
        let (_, subject, reason) = self.refusal.parts();
        (self.pid, subject, reason)
    }
}

/// The same with one line for each object: a ring of io_uring, say, is a descriptor and two or three mappings. They are
/// of one object where process, name and reason are the same.
pub fn one_per_object<T: OfObject + Clone>(all: &[T]) -> Vec<T> {
    let descriptors = all.iter().map(OfObject::parts).filter_map(|(pid, subject, reason)| match subject {
        Subject::Descriptor { name, .. } => Some((pid, name.as_str(), reason)),
        _ => None,
    });
    let mut said: HashSet<(i32, &str, &str)> = descriptors.collect();
    let mut kept = Vec::new();
    for one in all {
        let again = match one.parts() {
            (pid, Subject::Mapping { name, .. }, reason) if !name.is_empty() => {
                !said.insert((pid, name, reason))
            }
            _ => false,
        };
        if !again {
            kept.push(one.clone());
        }
    }
    kept
}

/// What a look at a running program found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// The program.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// What cannot be checkpointed: of the program first, then of its children.
    pub findings: Vec<Finding>,
    /// How many more there were than fit a message.
    #[serde(default)]
    pub left_out: usize,
    /// Device memory of all processes; none: none uses CUDA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// What else is to be known of an image of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What a checkpoint would take, where that can be said.
    #[serde(default)]
    pub estimate: Option<Estimate>,
}

/// What the next checkpoint of a job would take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Estimate {
    /// What the processes have in memory, bytes.
    pub memory_bytes: u64,
    /// Memory that would be read: what was written since the last image, as far as that is known, else all.
    pub dirty_bytes: u64,
    /// What the image would add on disk, bytes.
    pub image_bytes: u64,
    /// How long the program would be stopped, nanoseconds; none: it has no image yet, and nothing else says it.
    pub stop_ns: Option<u64>,
    /// Number of images that say so.
    pub images: u64,
    /// What says it, where they are none of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_by: Option<StopBy>,
}

/// What says how long the first image of a run will stop the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopBy {
    /// Images of earlier runs of the job.
    EarlierRuns,
    /// What other programs with as much device memory have taken on another machine.
    OtherMachine,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_each_object() {
        let ring = |start| Subject::Mapping { start, end: start + 1, name: "anon_inode:[io_uring]".into() };
        let of =
            |pid, subject: Subject, reason: &str| Refusal { subject, reason: reason.into() }.of(pid, "sim");
        let nameless = |start| Subject::Mapping { start, end: start + 1, name: String::new() };
        let all = [
            of(1, ring(1), "no"),
            of(1, ring(2), "no"),
            of(2, ring(1), "no"),
            of(2, ring(2), "no"),
            of(1, ring(3), "too large"),
            of(1, descriptor(9, "anon_inode:[io_uring]"), "no"),
            of(1, descriptor(10, "anon_inode:[io_uring]"), "no"),
            of(1, nameless(1), "no"),
            of(1, nameless(2), "no"),
        ];
        let wanted = [&all[2], &all[4], &all[5], &all[6], &all[7], &all[8]].map(Clone::clone);
        assert_eq!(one_per_object(&all), wanted);
    }

    fn descriptor(fd: i32, name: &str) -> Subject {
        Subject::Descriptor { fd, name: name.into() }
    }

    #[test]
    fn a_finding_names_process_object_and_reason_once() {
        let refusal = Refusal { subject: descriptor(7, "socket:[1]"), reason: "not supported yet".into() };
        let finding = Finding::new(12, "sim", refusal);
        assert_eq!(finding.to_string(), "process 12 (sim): fd 7 (socket:[1]): not supported yet");
        assert_eq!(finding.refusal.clone().of(12, "sim").to_string(), finding.to_string());
        let child = Subject::Process { pid: 13, comm: "helper".into() };
        let finding = Finding::new(12, "sim", Refusal { subject: child, reason: "a child".into() });
        assert_eq!((finding.pid, finding.to_string().as_str()), (13, "process 13 (helper): a child"));
        let mapping = Subject::Mapping { start: 0x1000, end: 0x2000, name: "/dev/x".into() };
        assert_eq!(mapping.to_string(), "mapping 0x1000-0x2000 (/dev/x)");
    }

    #[test]
    fn findings_keep_their_fields_in_json() {
        let refusal = Refusal { subject: descriptor(7, "pipe:[2]"), reason: "why".into() };
        let finding = Finding::new(12, "sim", refusal);
        let text = r#"{"pid":12,"comm":"sim","subject":{"kind":"descriptor","fd":7,"name":"pipe:[2]"},"reason":"why"}"#;
        assert_eq!(serde_json::to_string(&finding).unwrap(), text);
        assert_eq!(serde_json::from_str::<Finding>(text).unwrap(), finding);
    }

    #[test]
    fn a_thing_stays_the_same_when_it_grows() {
        let mapping = |start, end| Subject::Mapping { start, end, name: String::new() };
        assert!(mapping(1, 5).is(&mapping(0, 2)) && !mapping(1, 5).is(&mapping(5, 6)));
        assert!(descriptor(7, "a").is(&descriptor(7, "b")) && !descriptor(7, "a").is(&descriptor(8, "a")));
        assert!(!descriptor(7, "a").is(&Subject::Thread { tid: 7 }));
    }
}
