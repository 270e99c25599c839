//! The rows: every function of the driver's headers, with what is done with it. Made by `build.rs` from
//! `functions.txt` and `header/symbols.txt`.
//!
//! Pure. Invariants: rows are sorted by symbol; a row's number is what the gate, the agent and the wrappers mean by it,
//! within one build of the library. There are no pointers in the table, which the loader would have to relocate in
//! every program that never uses it.

use core::cmp::Ordering;
use core::ffi::CStr;

/// What is done with a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The program gets the driver's own.
    Forward,
    /// A wrapper without the gate: it replaces addresses, or counts.
    Resolve,
    /// A wrapper with the gate.
    Gate,
    /// The same, and it gives the device work.
    Work,
    /// The same as [`Class::Gate`], and objects are made or ended.
    Track,
    /// The same, and objects that forbid a checkpoint are made.
    Refuse,
}

/// A function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Offset of its symbol in the names.
    symbol: u16,
    /// Offset of its name for cuGetProcAddress().
    name: u16,
    /// The lowest version for which cuGetProcAddress() gives it.
    pub version: u32,
    /// The variant whose default stream is the calling thread's own.
    pub per_thread: bool,
    /// What is done with it.
    pub class: Class,
}

include!(concat!(env!("OUT_DIR"), "/rows.rs"));

fn text(offset: u16) -> &'static CStr {
    let rest = NAMES.get(usize::from(offset)..).unwrap_or(&[]);
    CStr::from_bytes_until_nul(rest).unwrap_or_default()
}

impl Row {
    /// Its symbol in the driver library.
    pub fn symbol(&self) -> &'static CStr {
        text(self.symbol)
    }
    /// Its name for cuGetProcAddress().
    pub fn name(&self) -> &'static CStr {
        text(self.name)
    }
    /// Whether there is a wrapper.
    pub fn has_wrapper(&self) -> bool {
        self.class != Class::Forward
    }
}

/// Address and length of the symbols, for the agent: that of row n is the n-th text in there.
pub fn symbols() -> (u64, u64) {
    (NAMES.as_ptr().addr() as u64, NAMES.len() as u64)
}

/// The row of a symbol.
pub fn find(symbol: &CStr) -> Option<usize> {
    ROWS.binary_search_by(|row| compare(row.symbol(), symbol)).ok()
}

/// As bytes; the library's own comparison would bring memcmp of the C library.
fn compare(one: &CStr, other: &CStr) -> Ordering {
    one.to_bytes().iter().cmp(other.to_bytes().iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::string::{String, ToString};
    use std::vec::Vec;
    use std::{eprintln, format, fs, path::PathBuf};

    fn name(row: &Row) -> String {
        row.name().to_str().unwrap().to_string()
    }

    #[test]
    fn the_agent_finds_the_symbol_of_a_row_by_counting() {
        let texts: Vec<&[u8]> = NAMES.split(|&byte| byte == 0).collect();
        assert!(ROWS.iter().zip(texts).all(|(row, text)| row.symbol().to_bytes() == text));
    }

    #[test]
    fn every_function_of_the_header_has_a_row_that_is_found() {
        let header = include_str!("../header/symbols.txt");
        let symbols: Vec<&str> = header
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(symbols.len(), ROWS.len());
        for symbol in symbols {
            let symbol = std::ffi::CString::new(symbol).unwrap();
            let row = find(&symbol).unwrap_or_else(|| panic!("{symbol:?} has no row"));
            assert_eq!(ROWS[row].symbol(), symbol.as_c_str());
        }
        let names: std::collections::BTreeSet<String> = ROWS.iter().map(name).collect();
        assert!(names.len() > 400, "{} functions", names.len());
        for unknown in [c"cuI", c"cuInitx", c"cudaMalloc", c"", c"zz"] {
            assert_eq!(find(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn what_the_agent_relies_on_is_not_held_up() {
        for row in &ROWS {
            let name = name(row);
            if name.starts_with("cuCheckpoint") {
                assert_eq!(row.class, Class::Forward, "{name} must pass while the gate is closed");
            }
            if name.starts_with("cuLaunchK") || name.starts_with("cuMemset") {
                assert_eq!(row.class, Class::Work, "{name}");
            }
        }
    }

    /// The functions by class and reason, for docs/cuda-hooks.md.
    fn documented() -> String {
        let classes = [
            (Class::Refuse, "refused while in force"),
            (Class::Track, "tracked"),
            (Class::Work, "gated, counted as work"),
            (Class::Gate, "gated"),
            (Class::Resolve, "resolved"),
            (Class::Forward, "forwarded"),
        ];
        let mut text = String::from("| what is done | why | functions |\n| --- | --- | --- |\n");
        for (class, word) in classes {
            let mut by_reason: BTreeMap<&str, std::collections::BTreeSet<String>> = BTreeMap::new();
            for (row, reason) in ROWS.iter().zip(REASONS) {
                if row.class == class {
                    by_reason.entry(reason).or_default().insert(name(row));
                }
            }
            for (reason, names) in by_reason {
                let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
                text.push_str(&format!("| {word} | {reason} | {} |\n", names.join(" ")));
            }
        }
        text
    }

    /// `HOLDFAST_WRITE_DOCS=1 cargo test -p holdfast-cuda-hooks` writes it.
    #[test]
    fn the_documentation_has_this_table() {
        const BEGIN: &str = "<!-- functions: made from cuda-hooks/functions.txt -->\n";
        const END: &str = "<!-- functions: end -->\n";
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/cuda-hooks.md");
        let text = fs::read_to_string(&path).unwrap();
        let (head, rest) = text.split_once(BEGIN).unwrap();
        let (found, tail) = rest.split_once(END).unwrap();
        if std::env::var_os("HOLDFAST_WRITE_DOCS").is_some() {
            fs::write(&path, format!("{head}{BEGIN}{}{END}{tail}", documented())).unwrap();
            eprintln!("{} is written", path.display());
        } else {
            assert!(
                found == documented(),
                "docs/cuda-hooks.md is not as functions.txt: HOLDFAST_WRITE_DOCS=1 writes it"
            );
        }
    }
}
