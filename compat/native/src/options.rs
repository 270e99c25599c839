//! Options of a handle: `store=DIR;tier=dir=PATH,keep=N;keep=N`, from a program or from its environment.

use holdfast_objects::client::{ClientOptions, Error, default_store};
use std::path::PathBuf;

/// What an option text says, of a set of which all else is known.
///
/// # Errors
/// A name that is no option's, a number that is none.
pub fn parse(text: &str, set: &str, rank: u32, ranks: u32) -> Result<ClientOptions, Error> {
    let mut options = ClientOptions { set: set.to_owned(), rank, ranks, ..ClientOptions::default() };
    for option in text.split(';').map(str::trim).filter(|option| !option.is_empty()) {
        let wrong = |why: &str| Error::Argument(format!("option \"{option}\": {why}"));
        let (name, value) = option.split_once('=').ok_or_else(|| wrong("NAME=VALUE is expected"))?;
        match (name.trim(), value.trim()) {
            ("store", store) => options.store = PathBuf::from(store),
            ("holdfast", binary) => options.holdfast = Some(PathBuf::from(binary)),
            ("tier", tier) => options.tiers.push(tier.to_owned()),
            ("keep", number) => {
                let keep = number.parse().ok().filter(|number| *number > 0);
                options.keep = Some(keep.ok_or_else(|| wrong("a number of versions from 1 on is expected"))?);
            }
            _ => return Err(wrong("store, tier, keep and holdfast are the options that there are")),
        }
    }
    if options.store.as_os_str().is_empty() {
        options.store = default_store();
    }
    Ok(options)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_apart() {
        let options = parse("store=/s; keep=3;tier=dir=/pfs,keep=9;tier=s3://b/p;", "heat", 2, 4).unwrap();
        assert_eq!((options.store, options.keep), (PathBuf::from("/s"), Some(3)));
        assert_eq!(options.tiers, ["dir=/pfs,keep=9", "s3://b/p"]);
        assert_eq!((options.set.as_str(), options.rank, options.ranks), ("heat", 2, 4));
        for wrong in ["stor=/s", "keep=0", "keep=many", "store"] {
            assert!(parse(wrong, "heat", 0, 1).is_err(), "{wrong}");
        }
    }
}
