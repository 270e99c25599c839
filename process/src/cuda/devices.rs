//! Which device of this machine takes the place of which of an image: the pairs that the driver wants at a restore.
//!
//! Called at a restart, before anything runs. Source: cuda.h 13.0, CUcheckpointRestoreArgs and CUcheckpointGpuPair;
//! "CUDA Driver API", CUDA Checkpointing: the target must be of the same chip type, and pairs, if there are any, must
//! name every device that was checkpointed. What must hold: a device that is here takes its own place; no device takes
//! that of two; only devices of the same model take each other's, unless the user says so. An image names all devices
//! that the driver offered at the cut: the program may have used fewer, so those for which there is no other are left
//! out, and the driver refuses if it misses one. Fails by: words for the user.

use holdfast_image::cuda::{CudaDevice, uuid_bytes};
use holdfast_sys::cuda::DevicePair;
use std::fmt;

/// The same by their names, as nvidia-smi prints them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Of the image.
    pub old: String,
    /// Of this machine.
    pub new: String,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in place of {}", self.new, self.old)
    }
}

/// Pairs for devices that were there, of those that are here; none: each is its own pair. `wanted`: what the user
/// says, `OLD=NEW` with commas between.
///
/// # Errors
/// None can stand for any, or what the user says cannot be.
pub fn pairs(there: &[CudaDevice], here: &[CudaDevice], wanted: &str) -> Result<Vec<Pair>, String> {
    let mut found = said(there, here, wanted)?;
    if found.is_empty() && there.iter().all(|old| here.iter().any(|new| new.uuid == old.uuid)) {
        return Ok(found);
    }
    let mut missing = Vec::new();
    for old in there.iter().filter(|old| !old.uuid.is_empty()) {
        if found.iter().any(|pair| pair.old == old.uuid) {
            continue;
        }
        let is_free = |new: &&CudaDevice| found.iter().all(|pair| pair.new != new.uuid);
        match here.iter().filter(is_free).find(|new| new.uuid == old.uuid) {
            Some(_) => found.push(Pair { old: old.uuid.clone(), new: old.uuid.clone() }),
            None => missing.push(old),
        }
    }
    for old in missing {
        let is_free = |new: &&CudaDevice| found.iter().all(|pair| pair.new != new.uuid);
        if let Some(new) = here.iter().filter(is_free).find(|new| new.name == old.name) {
            found.push(Pair { old: old.uuid.clone(), new: new.uuid.clone() });
        }
    }
    if found.is_empty() && !there.is_empty() {
        return Err(format!(
            "the image is of {}, and this machine has {}: a restart needs a device of the same model",
            named(there),
            named(here)
        ));
    }
    Ok(found)
}

/// What the user says.
fn said(there: &[CudaDevice], here: &[CudaDevice], wanted: &str) -> Result<Vec<Pair>, String> {
    let mut found: Vec<Pair> = Vec::new();
    for word in wanted.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (old, new) = word.split_once('=').ok_or_else(|| format!("{word} is not OLD=NEW"))?;
        let one_of = |uuid: &str, devices: &[CudaDevice], whose: &str| match devices
            .iter()
            .any(|device| device.uuid == uuid)
        {
            true => Ok(uuid.to_owned()),
            false => Err(format!("{uuid} is not a device of {whose}, which has {}", named(devices))),
        };
        let pair = Pair { old: one_of(old, there, "the image")?, new: one_of(new, here, "this machine")? };
        if found.iter().any(|other| other.old == pair.old || other.new == pair.new) {
            return Err(format!("{word} names a device of another pair"));
        }
        found.push(pair);
    }
    Ok(found)
}

fn named(devices: &[CudaDevice]) -> String {
    let words: Vec<String> =
        devices.iter().map(|device| format!("{} ({})", device.uuid, device.name)).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// As the driver wants them. One that is not written as a UUID is left out: the driver could not know it.
pub fn bytes(pairs: &[Pair]) -> Vec<DevicePair> {
    pairs.iter().filter_map(|pair| Some([uuid_bytes(&pair.old)?, uuid_bytes(&pair.new)?])).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn device(uuid: &str, name: &str) -> CudaDevice {
        CudaDevice { uuid: uuid.to_owned(), name: name.to_owned() }
    }

    fn of(pairs: &[Pair]) -> Vec<(&str, &str)> {
        pairs.iter().map(|pair| (&*pair.old, &*pair.new)).collect()
    }

    #[test]
    fn what_is_here_is_its_own_pair_and_others_of_the_model_that_of_the_rest() {
        let (a, b, c, d) = (device("a", "H"), device("b", "H"), device("c", "H"), device("d", "L"));
        let both = [a.clone(), b.clone()];
        assert_eq!(pairs(&both, &[d.clone(), b.clone(), a.clone()], ""), Ok(Vec::new()));
        let moved = pairs(&both, &[d.clone(), c.clone(), b.clone()], "").unwrap();
        assert_eq!(of(&moved), [("b", "b"), ("a", "c")], "every device of the image is named");
        assert_eq!(
            of(&pairs(&both, std::slice::from_ref(&c), "").unwrap()),
            [("a", "c")],
            "it may not have used the other"
        );
        let refused = pairs(&both, std::slice::from_ref(&d), "").unwrap_err();
        assert!(refused.contains("a (H), b (H)") && refused.contains("d (L)"), "{refused}");
        assert!(pairs(&both, &[], "").unwrap_err().contains("this machine has none"));
        assert_eq!(pairs(&[], &[d], ""), Ok(Vec::new()), "nothing is known of older images");
    }

    #[test]
    fn what_the_user_says_holds() {
        let (a, b, d) = (device("a", "H"), device("b", "H"), device("d", "L"));
        let there = [a.clone(), b.clone()];
        let here = [a, b, d];
        assert_eq!(of(&pairs(&there, &here, "a=b,b=a").unwrap()), [("a", "b"), ("b", "a")]);
        assert_eq!(of(&pairs(&there, &here, "a=d").unwrap()), [("a", "d"), ("b", "b")]);
        for wrong in ["a", "x=a", "a=x", "a=b,a=d", "a=d,b=d"] {
            assert!(pairs(&there, &here, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_uuid_is_not_handed_to_the_driver() {
        let uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff".to_owned();
        let good = Pair { old: uuid.clone(), new: uuid };
        let bad = Pair { old: "GPU-0".to_owned(), ..good.clone() };
        let [[old, new]] = bytes(&[bad, good])[..] else { unreachable!("one pair") };
        assert_eq!((old, new[1]), (new, 0x11));
    }

    /// Every machine with up to four devices of two models, and every image of such a one.
    #[test]
    fn no_device_is_the_pair_of_two_or_of_one_of_another_model() {
        let machine = |number: usize| {
            let place = |at: usize| (["a", "b", "c", "d"][at], number / 3_usize.pow(at as u32) % 3);
            let all = (0..4).map(place).filter(|(_, model)| *model > 0);
            all.map(|(uuid, model)| device(uuid, ["H", "L"][model - 1])).collect::<Vec<_>>()
        };
        let model = |devices: &[CudaDevice], uuid: &str| {
            devices.iter().find(|device| device.uuid == uuid).map(|device| device.name.clone())
        };
        for (there, here) in (0..81).flat_map(|old| (0..81).map(move |new| (machine(old), machine(new)))) {
            let Ok(found) = pairs(&there, &here, "") else { continue };
            for (number, pair) in found.iter().enumerate() {
                let rest = &found[number + 1..];
                assert!(rest.iter().all(|other| other.old != pair.old && other.new != pair.new), "{found:?}");
                assert!(
                    pair.old == pair.new || model(&there, &pair.old) == model(&here, &pair.new),
                    "{found:?}"
                );
            }
        }
    }
}
