//! All descriptors of the program, at their numbers, before it exists.
//!
//! Every object is made at a number above all that the program has; then everything below is closed and each object is
//! duplicated down. What stays above is close-on-exec and goes with the exec. Runs in the new process
//! ([`super::life`]). How it fails: an error names the descriptor or file; nothing but file lengths was changed then.

use super::error::RebuildError;
use super::objects::Makers;
use super::regular::{self, Nameless};
use super::report::{self, Message};
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileTable, Object, ProcessRecord};
use holdfast_sys::{attributes, fd, objects};
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Descriptors above those of the program, besides one for each description: pairs in the making, folders, the rest.
const SPARE: u64 = 64;

/// What the new process itself needs until the exec.
pub struct Carried {
    /// Leads to the agent.
    pub agent: OwnedFd,
    /// Leads to the front.
    pub report: OwnedFd,
    /// What will be executed.
    pub executable: OwnedFd,
}

/// The table under construction.
struct Bench<'a> {
    table: &'a FileTable,
    /// Lowest number that the program does not use.
    floor: i32,
    /// Descriptors of the front that the program takes over, by number.
    handed_down: HashMap<i32, OwnedFd>,
    makers: Makers,
    nameless: Nameless,
    notes: Vec<String>,
}

/// Makes and opens everything.
///
/// # Errors
/// Names the descriptor or file and what to do.
pub fn bring_back(record: &ProcessRecord, carried: Carried) -> Result<Carried, RebuildError> {
    let table = &record.files;
    let floor = table.descriptors.last().map_or(0, |last| last.fd).max(2) + 1;
    let wanted = u64::from(floor.cast_unsigned()) + table.descriptions.len() as u64 + SPARE;
    raise_limit(wanted)?;
    let raise = |fd: OwnedFd| objects::duplicate_above(fd.as_raw_fd(), floor);
    let carried = (|| -> io::Result<Carried> {
        Ok(Carried {
            agent: raise(carried.agent)?,
            report: raise(carried.report)?,
            executable: raise(carried.executable)?,
        })
    })()
    .map_err(RebuildError::io("moving descriptors out of the way"))?;
    let handed_down = take_handed_down(table, floor);
    let mut bench = Bench {
        table,
        floor,
        handed_down,
        makers: Makers::default(),
        nameless: Nameless::default(),
        notes: Vec::new(),
    };
    let outcome = bench.make_all().and_then(|made| bench.put_in_place(made));
    for note in bench.notes.drain(..) {
        report::tell(&carried.report, &Message::Note(note));
    }
    outcome.map(|()| carried)
}

/// Descriptors of the front that the record names. Those above 2 count only if the front was started with them: what it
/// opened itself is close-on-exec.
fn take_handed_down(table: &FileTable, floor: i32) -> HashMap<i32, OwnedFd> {
    let mut taken = HashMap::new();
    for description in &table.descriptions {
        let Object::Inherited { from, .. } = description.object else { continue };
        let Ok(copy) = objects::duplicate_above(from, floor) else { continue };
        if from <= 2 || objects::descriptor_flags(from).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0) {
            taken.insert(from, copy);
        }
    }
    taken
}

/// Raises the soft limit of descriptors, as far as needed and allowed; the agent sets the program's own at the end.
fn raise_limit(wanted: u64) -> Result<(), RebuildError> {
    let (_, hard) =
        attributes::limit(0, libc::RLIMIT_NOFILE).map_err(RebuildError::io("asking for RLIMIT_NOFILE"))?;
    if hard < wanted {
        return Err(RebuildError::Image(format!(
            "the program's descriptors need RLIMIT_NOFILE {wanted}, and the hard limit here is {hard}: raise it (ulimit -Hn)"
        )));
    }
    attributes::set_limit(0, libc::RLIMIT_NOFILE, hard, hard)
        .map_err(RebuildError::io("raising RLIMIT_NOFILE"))
}

impl Bench<'_> {
    /// Every description, as a descriptor above the floor; `None` for what comes back closed.
    fn make_all(&mut self) -> Result<Vec<Option<OwnedFd>>, RebuildError> {
        let table = self.table;
        let mut made = Vec::with_capacity(table.descriptions.len());
        for (index, description) in table.descriptions.iter().enumerate() {
            let holder =
                table.descriptors.iter().find(|d| d.description as usize == index).map_or(-1, |d| d.fd);
            let fd = self.make(description, holder)?;
            let raised = fd
                .map(|fd| {
                    if fd.as_raw_fd() >= self.floor {
                        Ok(fd)
                    } else {
                        objects::duplicate_above(fd.as_raw_fd(), self.floor)
                    }
                })
                .transpose()
                .map_err(RebuildError::io(format!("descriptor {holder}")))?;
            made.push(raised);
        }
        self.makers.fill(table)?;
        // Their numbers are below the floor: they must be gone before those are given out.
        self.nameless = Nameless::default();
        Ok(made)
    }

    fn make(&mut self, description: &Description, holder: i32) -> Result<Option<OwnedFd>, RebuildError> {
        let io = || RebuildError::io(format!("making descriptor {holder}"));
        let flags = description.flags;
        Ok(Some(match &description.object {
            Object::Own => return Ok(None),
            Object::Regular { deleted_content: Some(content), .. } => {
                self.nameless.open(&description.object, flags, &content.0)?
            }
            Object::Regular { .. } => regular::open(&description.object, flags, &mut self.notes)?,
            Object::Directory { path, position } => {
                let folder = open_path(path, flags)?;
                if *position != 0 {
                    objects::seek(folder.as_fd(), *position).map_err(io())?;
                }
                folder
            }
            Object::Device { path } => open_path(path, flags)?,
            Object::Inherited { from, was } => return self.inherit(*from, was, flags, holder),
            other => self.makers.make(other, flags).map_err(io())?,
        }))
    }

    /// One that the front was started with.
    fn inherit(
        &mut self,
        from: i32,
        was: &Name,
        flags: u32,
        holder: i32,
    ) -> Result<Option<OwnedFd>, RebuildError> {
        let Some(fd) = self.handed_down.get(&from) else {
            let what = format!(
                "descriptor {holder} ({was}) leads nowhere now: descriptor {from} of holdfast restart is closed"
            );
            self.notes.push(what);
            // A standard descriptor that is closed stays closed; one that a batch system handed down must be there.
            let null = || {
                objects::open(c"/dev/null", flags & !NOT_AGAIN, 0)
                    .map_err(RebuildError::io("opening /dev/null"))
            };
            return if from > 2 { null().map(Some) } else { Ok(None) };
        };
        let copy = objects::duplicate_above(fd.as_raw_fd(), self.floor)
            .map_err(RebuildError::io(format!("making descriptor {holder}")))?;
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        if flags & nonblocking != 0 {
            let now = fd::fcntl(copy.as_fd(), libc::F_GETFL, 0).unwrap_or(0);
            let _ = fd::fcntl(copy.as_fd(), libc::F_SETFL, i64::from(now | libc::O_NONBLOCK));
        }
        Ok(Some(copy))
    }

    /// Everything to its number; then epoll instances learn what they watch, which they know by number.
    fn put_in_place(&mut self, made: Vec<Option<OwnedFd>>) -> Result<(), RebuildError> {
        let last = u32::try_from(self.floor - 1).unwrap_or(2);
        objects::close_range(0, last).map_err(RebuildError::io("closing the front's descriptors"))?;
        let mut present = Vec::new();
        for descriptor in &self.table.descriptors {
            if let Some(object) = made.get(descriptor.description as usize).and_then(Option::as_ref) {
                objects::duplicate_to(object.as_fd(), descriptor.fd)
                    .map_err(RebuildError::io(format!("making descriptor {}", descriptor.fd)))?;
                present.push(descriptor.fd);
            }
        }
        for (index, description) in self.table.descriptions.iter().enumerate() {
            let Object::Epoll { entries } = &description.object else { continue };
            let Some(holder) = self.table.descriptors.iter().find(|d| d.description as usize == index) else {
                continue;
            };
            for entry in entries {
                let outcome = if present.contains(&entry.fd) {
                    objects::epoll_add(holder.fd, entry.fd, entry.events, entry.data)
                        .map_err(|error| error.to_string())
                } else {
                    Err("it is closed".to_owned())
                };
                if let Err(why) = outcome {
                    self.notes.push(format!(
                        "epoll descriptor {} no longer watches {}: {why}",
                        holder.fd, entry.fd
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Flags of open(2) that make or change a file, or that the kernel reports but does not take.
pub const NOT_AGAIN: u32 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC).cast_unsigned();

/// A path as the kernel takes it.
pub fn c_path(path: &Name) -> Result<CString, RebuildError> {
    CString::new(path.0.clone()).map_err(|_| RebuildError::file(path, "the path has a zero byte in it"))
}

/// Opens what has a name, with the flags that it had.
pub fn open_path(path: &Name, flags: u32) -> Result<OwnedFd, RebuildError> {
    let name = c_path(path)?;
    let wanted = flags & !NOT_AGAIN | libc::O_NOCTTY.cast_unsigned();
    let no_atime = libc::O_NOATIME.cast_unsigned();
    objects::open(&name, wanted, 0)
        // O_NOATIME is for the owner only; the file may have another one here.
        .or_else(
            |error| {
                if flags & no_atime != 0 { objects::open(&name, wanted & !no_atime, 0) } else { Err(error) }
            },
        )
        .map_err(|error| {
            RebuildError::file(
                path,
                format!("the program had it open, and it cannot be opened: {error}; put it back"),
            )
        })
}
