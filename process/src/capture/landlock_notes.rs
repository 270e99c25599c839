//! The Landlock domain of a process as libholdfast has noted it ([`LandlockNotes`]): whether it is known as a whole,
//! and could be made again.
//!
//! Called by [`super::landlock`], inside the stop and for `check`. A note is believed where the process was in as many
//! layers before its first as the agent is in, those of its host, and where each file of a rule is at its path. Fails
//! by: words for a refusal.

use super::identity;
use holdfast_abi::{LandlockLayer, LandlockNotes, LandlockRule, LandlockRuleset, SharedPage};
use holdfast_image::bytes::Name;
use holdfast_image::landlock;
use holdfast_image::record::InjectArea;
use holdfast_sys::landlock as kernel;
use holdfast_sys::procfs::Status;
use holdfast_sys::{fd, procmem};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const RULE_PATH_BENEATH: u32 = 1;
/// Access to files that the kernel knows so far (include/uapi/linux/landlock.h): later ones may forbid what libholdfast
/// does.
const FILES: u64 = (1 << 16) - 1;
/// CAP_SYS_ADMIN (include/uapi/linux/capability.h).
const ADMIN: u64 = 1 << 21;
/// PROC_SUPER_MAGIC (include/uapi/linux/magic.h).
const PROC: u64 = 0x9fa0;
const NOT_NOTED: &str = "of which libholdfast does not know all: it was made in a thread, past the C library, with \
                         more rules than are noted, or before the program was executed";
const SCOPED: &str =
    "with a scope (signals, abstract unix sockets), which no restart can make the same again";
const UNKNOWN_ACCESS: &str = "that forbids kinds of access which Holdfast does not know";
const NO_RIGHT: &str = "that a restart has no right to make again: the program has neither no_new_privs nor \
                        CAP_SYS_ADMIN";
const OF_PROCESS: &str = "with a rule for files of a process in /proc, which is not supported";

/// The layers that a process has made; none: it has made none through the C library. An error: why they cannot be made
/// again.
pub fn domain(pid: i32, tid: i32, area: &InjectArea) -> Result<Vec<landlock::LandlockLayer>, String> {
    let Some(page) = Some(area.shared.0).filter(|page| *page != 0) else { return Ok(Vec::new()) };
    let word = |at: usize| procmem::read_u64(tid, page + at as u64).unwrap_or(0);
    let count = word(SharedPage::LANDLOCK);
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; LandlockNotes::LEN];
    let at = word(SharedPage::DOMAIN);
    if at == 0 || procmem::read(tid, at, &mut bytes).is_err() {
        return Err(NOT_NOTED.into());
    }
    let notes = Notes(bytes);
    let is_known = notes.word(LandlockNotes::IS_UNKNOWN) == 0
        && notes.word(LandlockNotes::LAYER_COUNT) == count
        && notes.word(LandlockNotes::BEFORE) == kernel::layers();
    if !is_known {
        return Err(NOT_NOTED.into());
    }
    let may = |status: Status| status.number("NoNewPrivs") == Some(1) || status.mask("CapEff") & ADMIN != 0;
    if !Status::read(pid, tid).is_ok_and(may) {
        return Err(NO_RIGHT.into());
    }
    // Of a program that was restarted the notes have devices of then (another boot, another /proc).
    let was_restarted = word(SharedPage::RESTARTS) > 0;
    let whose = (pid, was_restarted);
    let layers = (0..usize::try_from(count).unwrap_or(0)).map(|number| notes.layer(number, whose));
    layers.collect()
}

struct Notes(Vec<u8>);

impl Notes {
    fn word(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// Two numbers of 32 bits.
    fn halves(&self, at: usize) -> (u32, u32) {
        let word = self.word(at);
        ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
    }

    fn layer(&self, number: usize, whose: (i32, bool)) -> Result<landlock::LandlockLayer, String> {
        let at = LandlockNotes::DOMAIN + number * size_of::<LandlockLayer>();
        let ((set, flags), until) = (self.halves(at), self.word(at + 8));
        let at = LandlockNotes::RULESETS + set as usize * size_of::<LandlockRuleset>();
        let [files, network, scoped] = [8, 16, 24].map(|place| self.word(at + place));
        if scoped != 0 {
            return Err(SCOPED.into());
        }
        if files & !FILES != 0 {
            return Err(UNKNOWN_ACCESS.into());
        }
        let until = usize::try_from(until).unwrap_or(usize::MAX).min(LandlockNotes::RULES);
        let own = (0..until)
            .map(|rule| LandlockNotes::RULE_TABLE + rule * size_of::<LandlockRule>())
            .filter(|at| self.halves(*at).0 == set);
        let rules = own.map(|at| self.rule(at, whose)).collect::<Result<_, _>>()?;
        Ok(landlock::LandlockLayer { files, network, flags, rules })
    }

    fn rule(&self, at: usize, (pid, was_restarted): (i32, bool)) -> Result<landlock::LandlockRule, String> {
        let (_, kind) = self.halves(at);
        let [access, value, len, device, inode] = [8, 16, 24, 32, 40].map(|place| self.word(at + place));
        if kind != RULE_PATH_BENEATH {
            return Ok(landlock::LandlockRule::Port { access, port: value });
        }
        let start = LandlockNotes::PATHS + usize::try_from(value).unwrap_or(usize::MAX / 2);
        let path = self.0.get(start..start + usize::try_from(len).unwrap_or(0)).ok_or(NOT_NOTED)?;
        let path = Name(path.to_vec());
        let outside = Path::new("/proc").join(pid.to_string()).join("root");
        let outside = outside.join(path.as_path().strip_prefix("/").map_err(|_| NOT_NOTED)?);
        let is_same = |now: &fs::Metadata| now.ino() == inode && (now.dev() == device || was_restarted);
        let Some(now) = fs::symlink_metadata(&outside).ok().filter(is_same) else {
            return Err(format!(
                "with a rule for {path}, which is not at that path any more: no restart could find it"
            ));
        };
        let is_of_proc = fd::file_system_type(&outside).is_ok_and(|kind| kind == PROC);
        let of_process = |rest: &[u8]| rest.first().is_some_and(u8::is_ascii_digit);
        if is_of_proc && path.0.strip_prefix(b"/proc/").is_some_and(of_process) {
            return Err(OF_PROCESS.into());
        }
        let inode = (!is_of_proc).then(|| identity::inode_of(&now));
        Ok(landlock::LandlockRule::Path { access, path, inode })
    }
}
