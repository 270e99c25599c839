//! Files of VELOC's own format, in both directions: `import --veloc` and `export --veloc`.
//!
//! * [`folder`]: what a folder has, and whether it is whole;
//! * [`import`]: it becomes versions of sets of objects; [`export`]: a version becomes files.
//!
//! A program that uses `libveloc-client.so` (`compat/veloc`) finds what was imported, and VELOC's own library what was
//! exported: so [`of_set`] and [`set_of`] know how that one calls its sets.

pub mod export;
mod folder;
pub mod import;

use holdfast_objects::veloc_file::is_name;

/// The object that a file of the program's own becomes, where nothing says what the program calls it.
const FILE: &str = "file:";

/// The set of a process that calls VELOC_Init_single with this id.
fn set_of(name: &str, id: u32) -> String {
    format!("{name}-{id}")
}

/// What VELOC calls a rank of a set: the checkpoints' name, and the rank. `None`: it can have none of this name.
fn of_set(set: &str, rank: u32, ranks: u32) -> Option<(String, u32)> {
    if is_name(set) {
        return Some((set.to_owned(), rank));
    }
    // Of one process by its id, or of ranks on several hosts: a set for each.
    let (name, own) = set.split_once('-').filter(|(name, _)| is_name(name) && ranks == 1)?;
    let number = own.strip_prefix("rank").unwrap_or(own);
    let id: u32 = number.parse().ok()?;
    (id.to_string() == number).then(|| (name.to_owned(), id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_names_that_veloc_gives_their_ranks() {
        let named = |name: &str, rank| Some((name.to_owned(), rank));
        assert_eq!(of_set("heat", 2, 4), named("heat", 2));
        assert_eq!(of_set(&set_of("heat", 7), 0, 1), named("heat", 7));
        assert_eq!(of_set("heat-rank3", 0, 1), named("heat", 3));
        for (set, ranks) in [("heat-7", 2), ("my-heat", 1), ("a-b-1", 1), ("heat-07", 1), ("-7", 1)] {
            assert_eq!(of_set(set, 0, ranks), None, "{set}");
        }
    }
}
