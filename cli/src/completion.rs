//! What shells complete: options and commands from the definition of the command line, and the names of jobs.
//!
//! The scripts of `holdfast completions` have the shell call `holdfast` itself with [`VARIABLE`] set; `main` calls
//! [`answer`] first, and [`crate::args`] says where names of jobs go. Nothing is created or locked, for a user only
//! pressed a key: a store that is not there has no jobs. A store that the line names is asked, not the default one.

use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use holdfast_tiers::Store;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Has the name of the shell that asks. A name of our own: COMPLETE may be set for other programs.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// Those of clap, with our own for bash.
const SHELLS: Shells<'static> = Shells(&[&SplitBash, &Elvish, &Fish, &Powershell, &Zsh]);

/// Answers a shell, where one asks, from the definition of the command line; says whether one did.
///
/// # Errors
/// Of clap: another shell, or standard output cannot be written.
pub fn answer(line: fn() -> Command) -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    let complete = CompleteEnv::with_factory(line).var(VARIABLE).shells(SHELLS);
    complete.try_complete(std::env::args_os(), folder.as_deref())
}

/// The script that makes a shell ask.
///
/// # Errors
/// There is none for this shell.
pub fn script(shell: clap_complete::Shell) -> io::Result<Vec<u8>> {
    let name = shell.to_string();
    let shell = SHELLS.completer(&name).ok_or_else(|| io::Error::other(format!("no script for {name}")))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "holdfast", "holdfast", "holdfast", &mut script)?;
    Ok(script)
}

/// The jobs of the store that the line names, or of the default one, for an argument that takes one.
pub fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        // holdfast -- WORDS, of which the first is the name of the command
        let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
        let root = named_store(&joined(words, 0).0).unwrap_or_else(Store::default_root);
        let names =
            if root.is_dir() { Store::open(&root).and_then(|store| store.jobs()) } else { Ok(Vec::new()) };
        names.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
    })
}

/// What `--store` says in a line, as the user has typed it: with `~`, which no shell has replaced yet.
fn named_store(words: &[OsString]) -> Option<PathBuf> {
    let own: Vec<&str> = words.iter().map_while(|word| word.to_str().filter(|word| *word != "--")).collect();
    let named = own.iter().enumerate().rev().find_map(|(at, word)| match word.strip_prefix("--store") {
        Some("") => own.get(at + 1).copied(),
        Some(rest) => rest.strip_prefix('='),
        None => None,
    })?;
    let plain = named.trim_matches(['"', '\'']);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    Some(match (plain.strip_prefix('~').map(|rest| rest.trim_start_matches('/')), home) {
        (Some(rest), Some(home)) if plain == "~" || plain.starts_with("~/") => home.join(rest),
        _ => PathBuf::from(plain),
    })
}

/// For bash `--name=value` is three words (COMP_WORDBREAKS, bash(1)): they become one again. `at` is the word of the
/// cursor, before and after.
fn joined(words: Vec<OsString>, at: usize) -> (Vec<OsString>, usize) {
    let mut out: Vec<OsString> = Vec::new();
    let mut cursor = at;
    let mut open = false;
    for (number, word) in words.into_iter().enumerate() {
        let option = out.last().is_some_and(|last| last.as_encoded_bytes().starts_with(b"--"));
        let joins = option && (word == "=" || open);
        open = option && word == "=";
        match out.last_mut() {
            Some(last) if joins => last.push(word),
            _ => out.push(word),
        }
        if number == at {
            cursor = out.len() - 1;
        }
    }
    (out, cursor)
}

/// bash as clap knows it, whose words are joined first.
struct SplitBash;

impl EnvCompleter for SplitBash {
    fn name(&self) -> &'static str {
        Bash.name()
    }
    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }
    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn io::Write,
    ) -> io::Result<()> {
        Bash.write_registration(var, name, bin, completer, buf)
    }
    fn write_complete(
        &self,
        cmd: &mut clap::Command,
        args: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn io::Write,
    ) -> io::Result<()> {
        // Variables of the script that write_registration has made.
        let at: usize =
            std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|at| at.parse().ok()).unwrap_or(0);
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        let split = args.get(at.wrapping_sub(1)).is_some_and(|word| word == "=");
        let (words, cursor) = joined(args, at);
        let found = clap_complete::engine::complete(cmd, words, cursor, current_dir)?;
        let value = |candidate: &CompletionCandidate| {
            let value = candidate.get_value().to_string_lossy().into_owned();
            // bash replaces what comes after the sign.
            match value.split_once('=') {
                Some((_, after)) if split => after.to_owned(),
                _ => value,
            }
        };
        buf.write_all(found.iter().map(value).collect::<Vec<_>>().join(&separator).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_store_is_the_one_that_the_line_names() {
        let store = |line: &str| named_store(&joined(words(line), 0).0);
        assert_eq!(store("holdfast restart "), None);
        assert_eq!(store("holdfast --store /s restart "), Some("/s".into()));
        assert_eq!(store("holdfast restart --store=/s "), Some("/s".into()));
        assert_eq!(store("holdfast restart --store = /s "), Some("/s".into()));
        assert_eq!(store("holdfast --store '/s' list "), Some("/s".into()));
        assert_eq!(store("holdfast run -- program --store /s "), None);
        assert_eq!(store("holdfast list --store"), None);
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join("s"));
        assert_eq!(store("holdfast --store ~/s list "), home.or(Some("~/s".into())));
    }

    #[test]
    fn words_that_bash_has_split_are_one_again() {
        let join = |line: &str, at| joined(words(line), at);
        assert_eq!(join("holdfast --store = /s list x", 5), (words("holdfast --store=/s list x"), 3));
        assert_eq!(join("holdfast --store = /s", 3), (words("holdfast --store=/s"), 1));
        assert_eq!(join("holdfast list a = b", 4), (words("holdfast list a = b"), 4));
        assert_eq!(join("holdfast --json list", 2), (words("holdfast --json list"), 2));
    }
}
