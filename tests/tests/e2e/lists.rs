//! The lists of this crate in themselves: the suite's programs exist and each group is run as both users in the short
//! form; what the kernel tells of a process is recorded, refused or known to be lost.

use holdfast_tests::known_losses::Told::Lost;
use holdfast_tests::known_losses::{LOSSES, TOLD, Told, chapter};
use holdfast_tests::sandbox::User;
use holdfast_tests::suite::{ENTRIES, Entry};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

#[test]
fn names_and_features_are_unique_and_programs_exist() {
    let (mut names, mut features) = (HashSet::new(), HashSet::new());
    for entry in ENTRIES {
        assert!(names.insert(entry.name), "{} is there twice", entry.name);
        assert!(features.insert(entry.feature), "{:?} is there twice", entry.feature);
        let program =
            entry.program.trim_end_matches("-static").trim_end_matches("-musl").trim_end_matches("-asan");
        let source = format!("{}/programs/{program}.c", env!("CARGO_MANIFEST_DIR"));
        assert!(Path::new(&source).exists(), "{source} is missing");
    }
}

#[test]
fn the_sample_has_each_group_as_both_users() {
    let groups: HashSet<_> = ENTRIES.iter().map(|entry| entry.group).collect();
    for group in groups {
        for user in [User::Root, User::Ordinary] {
            let there = |entry: &&Entry| entry.group == group && entry.short && entry.turn() == user;
            assert!(ENTRIES.iter().any(|entry| there(&entry)), "{group}: nothing is run as {user:?}");
        }
    }
}

fn told(name: &str) -> Option<Told> {
    let is = |pattern: &&str| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(start), _) => name.starts_with(start),
        (None, Some(end)) => name.ends_with(end),
        (None, None) => name == *pattern,
    };
    TOLD.iter().find(|(names, _)| names.iter().any(is)).map(|(_, told)| *told)
}

/// Names that a header defines as numbers up to `last`.
fn defined(header: &str, prefix: &str, last: u64) -> Vec<String> {
    let text = fs::read_to_string(header).unwrap_or_default();
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.nth(1).filter(|_| line.starts_with("#define"))?;
        let number: u64 = words.next()?.parse().ok()?;
        (name.starts_with(prefix) && number <= last).then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Names of a file that begin so, wherever they are in it.
fn named(header: &str, prefixes: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(header).unwrap_or_default();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

#[test]
fn what_the_kernel_tells_is_recorded_refused_or_known_to_be_lost() {
    // Newer ones are none of this list's.
    const NEWEST_SOCKET_OPTION: u64 = 84;
    let headers = [
        defined("/usr/include/asm-generic/socket.h", "SO_", NEWEST_SOCKET_OPTION),
        named("/usr/include/asm-generic/fcntl.h", &["F_GET"]),
        named("/usr/include/linux/fcntl.h", &["F_GET"]),
        named("/usr/include/linux/prctl.h", &["PR_GET_"]),
    ];
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let keys = status.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.to_owned());
    let is_known_kernel = version(&release).is_some_and(|version| version <= (6, 18));
    let all = headers.into_iter().flatten().chain(keys.filter(|_| is_known_kernel));
    let unknown: Vec<String> = all.filter(|name| told(name).is_none()).collect();
    assert!(unknown.is_empty(), "neither in the record nor known to be lost: {unknown:?}");
}

/// What an option of prctl(2) sets, another one tells, or it is in the list itself.
#[test]
fn what_prctl_sets_is_recorded_refused_or_known_to_be_lost() {
    let all = named("/usr/include/linux/prctl.h", &["PR_SET_"]);
    let is_known = |name: &String| told(name).is_some() || told(&name.replacen("SET", "GET", 1)).is_some();
    let unknown: Vec<String> = all.into_iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "neither in the record nor known to be lost: {unknown:?}");
}

/// The calls in the tables of docs/state.md; `*` stands for anything.
fn listed_calls() -> Vec<String> {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/state.md")).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let calls = rows.flat_map(|row| row.split('`').filter(|word| !word.trim().is_empty()));
    calls.map(str::to_owned).collect()
}

/// All system calls that the kernel here has, by the names of its functions (arch/x86/include/asm/syscall_wrapper.h),
/// and those that the headers know.
#[test]
fn all_system_calls_are_in_the_list_of_state() {
    let words = |path: &str, prefix: &str| -> Vec<String> {
        named(path, &[prefix]).iter().map(|name| name.replacen(prefix, "", 1)).collect()
    };
    let listed = listed_calls();
    assert!(listed.len() > 400 && listed.iter().collect::<HashSet<_>>().len() == listed.len());
    let is_listed = |name: &String| {
        let is = |pattern: &String| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
            (Some(start), _) => name.starts_with(start),
            (None, Some(end)) => name.ends_with(end),
            (None, None) => name == pattern,
        };
        listed.iter().any(is)
    };
    let of_kernel = words("/proc/kallsyms", "__x64_sys_");
    let of_headers = words("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "__NR_");
    let unknown: BTreeSet<String> =
        of_kernel.into_iter().chain(of_headers).filter(|name| !is_listed(name)).collect();
    assert!(unknown.is_empty(), "docs/state.md does not say what becomes of what these set: {unknown:?}");
}

#[test]
fn what_is_lost_is_in_the_list() {
    let listed: String = LOSSES.iter().map(|loss| format!("{} {} ", loss.what, loss.effect)).collect();
    let lost = TOLD.iter().filter(|(_, told)| *told == Lost).flat_map(|(names, _)| *names);
    let by_name = lost.filter(|name| name.starts_with("SO_")).map(|name| name.trim_end_matches('*'));
    let missing: Vec<&str> = by_name.filter(|name| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(chapter().lines().count() == LOSSES.len() + 7);
}
