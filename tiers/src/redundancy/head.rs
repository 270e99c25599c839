//! The head of a stream: `job.json` and the manifest of an image, in one blob.
//!
//! Called by the functions beside it, and by `verify`; knows no job. Fails by: an error that names the file.

use crate::format::manifest::MAX_LEN;
use crate::names;
use crate::stack::inventory::open_manifest;
use crate::tier::TierError;
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;

/// Beginning of a head.
const HEAD: &[u8; 16] = b"holdfast head 1\n";
/// With the lengths of its two parts.
const HEAD_LEN: usize = HEAD.len() + 16;

/// `job.json` and the manifest of an image, as they are in a head.
pub(super) struct Head {
    pub(super) recipe: serde_json::Value,
    pub(super) manifest: Vec<u8>,
}

/// The bytes of a head.
pub(super) fn encode(recipe: &[u8], manifest: &[u8]) -> Vec<u8> {
    let len = |part: &[u8]| (part.len() as u64).to_le_bytes();
    [&HEAD[..], &len(recipe), &len(manifest), recipe, manifest].concat()
}

/// What is wrong with the head of a set, if anything is.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn check_head(folder: &TierFolder, number: u64) -> Result<Option<String>, TierError> {
    let object = folder.object(&names::head_name(number));
    let bad = |what: &str| Ok(Some(format!("{object}: {what}")));
    let Some(head) = read(folder, number)? else { return bad("this is no head of an image") };
    match open_manifest(&object, Epoch(number), &head.manifest) {
        Ok(_) => Ok(None),
        Err(_) => bad("the manifest in it is damaged"),
    }
}

/// The head of an image; none: it is damaged.
///
/// # Errors
/// It cannot be looked at.
pub(super) fn read(folder: &TierFolder, number: u64) -> Result<Option<Head>, TierError> {
    let most = MAX_LEN + crate::files::MAX_RECIPE_LEN + HEAD_LEN as u64;
    let bytes = folder.whole(&names::head_name(number), most)?;
    let head = || {
        let rest = bytes.strip_prefix(HEAD)?;
        let (lens, rest) = rest.split_at_checked(16)?;
        let len = |at: usize| usize::try_from(u64::from_le_bytes(lens[at..at + 8].try_into().ok()?)).ok();
        let (recipe, manifest) = rest.split_at_checked(len(0)?)?;
        (manifest.len() == len(8)?).then_some(())?;
        Some(Head { recipe: serde_json::from_slice(recipe).ok()?, manifest: manifest.to_vec() })
    };
    Ok(head())
}
