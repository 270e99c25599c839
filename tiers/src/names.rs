//! Names of the blobs of images: `manifest-000001`, `segment-000001-000`; on lower tiers `job-000001`, `end-000001`; of
//! members of gangs `head-000001`, `parity-000001`, `group-000001`.
//!
//! They are the same on every tier; what is in them is in `docs/format.md`.

use holdfast_image::Epoch;

/// What a name in a job's folder means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FileName {
    Manifest(Epoch),
    Segment(Epoch, u32),
}

impl FileName {
    /// The image that it was written for.
    pub(crate) fn epoch(self) -> Epoch {
        match self {
            FileName::Manifest(epoch) | FileName::Segment(epoch, _) => epoch,
        }
    }
}

pub(crate) fn manifest_name(epoch: Epoch) -> String {
    format!("manifest-{:06}", epoch.0)
}

pub(crate) fn segment_name(epoch: Epoch, number: u32) -> String {
    format!("segment-{:06}-{number:03}", epoch.0)
}

/// `job.json` as it was when a version was copied to a lower tier.
pub(crate) fn recipe_name(epoch: Epoch) -> String {
    format!("job-{:06}", epoch.0)
}

/// Says that the run of a version came to its end after it, on lower tiers: for hosts that have nothing of the job.
pub(crate) fn end_name(epoch: Epoch) -> String {
    format!("end-{:06}", epoch.0)
}

/// Manifest and `job.json` of a version, as the first part of a stream of a gang's redundancy.
pub(crate) fn head_name(number: u64) -> String {
    format!("head-{number:06}")
}

/// Parity of other members' streams.
pub(crate) fn parity_name(number: u64) -> String {
    format!("parity-{number:06}")
}

/// Says what the parity is of: with it there is a set.
pub(crate) fn group_name(number: u64) -> String {
    format!("group-{number:06}")
}

/// What a blob of a set is, and its number; only names as the three functions above write them.
pub(crate) fn of_set(file: &str) -> Option<(SetBlob, u64)> {
    let (kind, number) = file.split_once('-')?;
    let number = number.parse().ok()?;
    let (blob, name) = match kind {
        "head" => (SetBlob::Head, head_name(number)),
        "parity" => (SetBlob::Parity, parity_name(number)),
        "group" => (SetBlob::Group, group_name(number)),
        _ => return None,
    };
    (name == file).then_some((blob, number))
}

/// A blob of a set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SetBlob {
    Head,
    Parity,
    Group,
}

/// The version of an `end-N`; only names as [`end_name`] writes them.
pub(crate) fn end_of(file: &str) -> Option<u64> {
    let number = file.strip_prefix("end-")?.parse().ok()?;
    (end_name(Epoch(number)) == file).then_some(number)
}

/// The version of a `job-N`; only names as [`recipe_name`] writes them.
pub(crate) fn recipe_of(file: &str) -> Option<u64> {
    let number = file.strip_prefix("job-")?.parse().ok()?;
    (recipe_name(Epoch(number)) == file).then_some(number)
}

/// Understands exactly the names that the first two functions above make.
pub(crate) fn parse_name(name: &str) -> Option<FileName> {
    if let Some(epoch) = name.strip_prefix("manifest-").and_then(|n| n.parse().ok()).map(Epoch)
        && manifest_name(epoch) == name
    {
        return Some(FileName::Manifest(epoch));
    }
    let numbers = name.strip_prefix("segment-").and_then(|n| n.split_once('-'));
    if let Some((epoch, number)) = numbers
        && let (Ok(epoch), Ok(number)) = (epoch.parse().map(Epoch), number.parse())
        && segment_name(epoch, number) == name
    {
        return Some(FileName::Segment(epoch, number));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_only_as_they_are_written() {
        for epoch in [1, 42, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(parse_name(&manifest_name(Epoch(epoch))), Some(FileName::Manifest(Epoch(epoch))));
            for number in [0, 999, 1000] {
                let name = segment_name(Epoch(epoch), number);
                assert_eq!(parse_name(&name), Some(FileName::Segment(Epoch(epoch), number)));
            }
        }
        for (name, blob) in [
            (head_name(4), SetBlob::Head),
            (parity_name(4), SetBlob::Parity),
            (group_name(1_000_000), SetBlob::Group),
        ] {
            assert!(of_set(&name).is_some_and(|(of, _)| of == blob) && parse_name(&name).is_none(), "{name}");
        }
        assert!(["head-4", "group-x", "head-+00004", "head"].iter().all(|name| of_set(name).is_none()));
        for name in
            ["manifest-1", "manifest-0000001", "manifest-+00001", "segment-000001", "segment-000001-1", "x"]
        {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
