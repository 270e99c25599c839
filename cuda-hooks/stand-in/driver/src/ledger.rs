//! What copies between host and device there were, and how long they would have taken: for tests of what copies.
//!
//! Written by `api::copy` and by what waits; only with `STAND_IN_LEDGER=FILE`, to which all processes that have it add.
//! Time is virtual. There is one copy engine: `STAND_IN_COPY_RATE` bytes per second with pinned memory (20G), a tenth
//! of that with other memory (A100: 12.6 and 1.4 GB/s, pytorch#138018; H200: 55 and 1.4, tests/gpu/results). A call
//! that submits costs the caller 2 us, one that waits 10 us more, beside what it waits for: not verified, and more than
//! a driver needs. What the host computes itself takes no time. So copies that are under way one behind the other take
//! as long as the engine does, and those that are waited for one by one take longer.
//!
//! Words of the file, of 8 bytes each: pinned copies, their bytes, pageable copies, their bytes, nanoseconds of this
//! account (the sum over all processes).

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;

use crate::settings::settings;

const SUBMIT_NS: u64 = 2_000;
const WAIT_NS: u64 = 10_000;
/// How much slower memory is that is not pinned.
const PAGEABLE: u64 = 10;

#[derive(Default)]
struct Account {
    /// The caller's time, and when the engine has done all that it was given.
    now: u64,
    busy_until: u64,
    /// What of `now` is in the file.
    told: u64,
}

static ACCOUNT: Mutex<Account> = Mutex::new(Account { now: 0, busy_until: 0, told: 0 });

/// A copy between host and device was submitted. Pageable memory is waited for.
pub fn copied(bytes: u64, pinned: bool, waited_for: bool) {
    let Some(path) = &settings().ledger else { return };
    let mut account = ACCOUNT.lock();
    account.now += SUBMIT_NS;
    let slower = if pinned { 1 } else { PAGEABLE };
    let took = (u128::from(bytes) * u128::from(slower) * 1_000_000_000) / u128::from(settings().copy_rate);
    account.busy_until = account.busy_until.max(account.now) + took as u64;
    if waited_for || !pinned {
        account.now = account.busy_until + WAIT_NS;
    }
    let first = if pinned { 0 } else { 2 };
    add(path, &mut account, first, [1, bytes]);
}

/// When all that was submitted up to now is done.
pub fn due() -> u64 {
    ACCOUNT.lock().busy_until
}

/// A thread has waited for what was done at some time.
pub fn waited(until: u64) {
    let Some(path) = &settings().ledger else { return };
    let mut account = ACCOUNT.lock();
    if account.now < until {
        account.now = until;
    }
    account.now += WAIT_NS;
    add(path, &mut account, 0, [0, 0]);
}

fn add(path: &str, account: &mut Account, first: u64, words: [u64; 2]) {
    let more = account.now - account.told;
    account.told = account.now;
    // The file's lock is of the process that has it open: a kill leaves none.
    let Ok(file) = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path) else {
        return;
    };
    if file.lock().is_err() {
        return;
    }
    for (word, more) in [(first, words[0]), (first + 1, words[1]), (4, more)] {
        let mut bytes = [0; 8];
        let _ = file.read_exact_at(&mut bytes, word * 8);
        let _ = file.write_all_at(&(u64::from_le_bytes(bytes) + more).to_le_bytes(), word * 8);
    }
}
