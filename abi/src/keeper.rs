//! What libholdfast asks of a keeper, the process that owns device memory for the program: one message of plain words
//! each way, over a connection that is made for it, to a socket beside the agent's.
//!
//! The keeper has memory under a name: a number that stays the same for as long as the memory lasts, in images too. A
//! descriptor of the memory comes with the answer (SCM_RIGHTS), for cuMemImportFromShareableHandle. Invariant: a
//! process gets what it has made itself, or what a restart has made for it, and nothing else.

/// A question: eight words.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeeperQuestion {
    /// [`KeeperQuestion::MAGIC`].
    pub magic: u64,
    /// [`KeeperQuestion::MAKE`] and so on.
    pub act: u64,
    /// Of the memory; 0 for a new one.
    pub name: u64,
    /// Of it: a multiple of 2 MiB.
    pub bytes: u64,
    /// UUID of the device, as cuDeviceGetUuid has it.
    pub uuid: [u64; 2],
    /// 0.
    pub reserved: [u64; 2],
}

/// The answer: four words.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeeperAnswer {
    /// [`KeeperQuestion::MAGIC`].
    pub magic: u64,
    /// 0, or the driver's error (CUresult), or a `REFUSED_`.
    pub result: u64,
    /// Of the memory.
    pub name: u64,
    /// Of it; [`KeeperQuestion::YIELD`]: what was given back.
    pub bytes: u64,
}

impl KeeperQuestion {
    /// "HFKEEP", and the version of the protocol.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"HFKEEP\x01\x00");
    /// Makes memory; its descriptor comes along.
    pub const MAKE: u64 = 1;
    /// A descriptor of memory that there is.
    pub const OPEN: u64 = 2;
    /// The process has given it up.
    pub const DROP: u64 = 3;
    /// The cache on the device is given up, because the program is short of memory.
    pub const YIELD: u64 = 4;
    /// Name of the socket, in the folder of the agent's.
    pub const SOCKET: &str = "keeper.sock";
    /// Length, bytes.
    pub const LEN: usize = size_of::<KeeperQuestion>();

    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; KeeperQuestion::LEN] {
        let [low, high] = self.uuid;
        let words = [self.magic, self.act, self.name, self.bytes, low, high, 0, 0];
        let mut bytes = [0; KeeperQuestion::LEN];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// What such bytes are; `None`: no question.
    pub fn from_bytes(bytes: &[u8]) -> Option<KeeperQuestion> {
        let bytes: &[u8; KeeperQuestion::LEN] = bytes.try_into().ok()?;
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [magic, act, name, bytes, low, high, ..] = words;
        let question = KeeperQuestion { magic, act, name, bytes, uuid: [low, high], reserved: [0; 2] };
        (magic == KeeperQuestion::MAGIC).then_some(question)
    }
}

impl KeeperAnswer {
    /// `result`: there is no such memory of this process's.
    pub const REFUSED_NAME: u64 = 1 << 32;
    /// `result`: the keeper cannot use the driver, or does not have the device.
    pub const REFUSED_DEVICE: u64 = 2 << 32;
    /// Length, bytes.
    pub const LEN: usize = size_of::<KeeperAnswer>();

    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; KeeperAnswer::LEN] {
        let mut bytes = [0; KeeperAnswer::LEN];
        let words = [self.magic, self.result, self.name, self.bytes];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// What such bytes are; `None`: no answer.
    pub fn from_bytes(bytes: &[u8]) -> Option<KeeperAnswer> {
        let bytes: &[u8; KeeperAnswer::LEN] = bytes.try_into().ok()?;
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [magic, result, name, bytes] = words;
        (magic == KeeperQuestion::MAGIC).then_some(KeeperAnswer { magic, result, name, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_was_said_and_other_bytes_are_nothing() {
        let magic = KeeperQuestion::MAGIC;
        let question =
            KeeperQuestion { magic, act: 2, name: 3, bytes: 4, uuid: [5, u64::MAX], reserved: [0; 2] };
        assert_eq!(KeeperQuestion::from_bytes(&question.to_bytes()), Some(question));
        let answer = KeeperAnswer { magic, result: 1, name: 2, bytes: 3 };
        assert_eq!(KeeperAnswer::from_bytes(&answer.to_bytes()), Some(answer));
        assert_eq!(KeeperQuestion::from_bytes(&[0; KeeperQuestion::LEN]), None);
        assert_eq!(KeeperAnswer::from_bytes(&question.to_bytes()), None);
        assert_eq!((KeeperQuestion::LEN, KeeperAnswer::LEN), (64, 32));
    }
}
