//! What goes from `client` to `server` and back. Both are this library, in two processes, perhaps on two sides of a
//! restart: of another version, or of another user, nothing is understood.

use std::io::{self, Read, Write};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// In which state the process is.
    State,
    /// RUNNING to LOCKED.
    Lock,
    /// LOCKED to CHECKPOINTED.
    Checkpoint,
    /// CHECKPOINTED to LOCKED.
    Restore,
    /// LOCKED to RUNNING.
    Unlock,
}

const OPERATIONS: [Operation; 5] =
    [Operation::State, Operation::Lock, Operation::Checkpoint, Operation::Restore, Operation::Unlock];

/// Something that an asking process has found to go wrong, by its own `STAND_IN_FAULT`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Injected {
    /// The operation fails.
    pub fails: bool,
    /// It never returns.
    pub hangs: bool,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What.
    pub operation: Operation,
    /// Of Lock; zero: none.
    pub timeout_ms: u32,
    /// See there.
    pub injected: Injected,
    /// The device of the machine that it comes from.
    pub uuid: [u8; 16],
    /// Its memory.
    pub memory: u64,
    /// Of Restore: old and new devices.
    pub pairs: Vec<([u8; 16], [u8; 16])>,
}

/// The answer: a result, and a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// `CUresult`
    pub code: u32,
    /// `CUprocessState`
    pub state: u32,
}

const HEAD: usize = 48;
const MOST_PAIRS: usize = 64;

impl Request {
    /// Sends it.
    pub fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD + 32 * self.pairs.len());
        let at = OPERATIONS.iter().position(|it| *it == self.operation).unwrap_or(0) as u32;
        bytes.extend(at.to_le_bytes());
        bytes.extend(self.timeout_ms.to_le_bytes());
        bytes.extend(u32::from(self.injected.fails).to_le_bytes());
        bytes.extend(u32::from(self.injected.hangs).to_le_bytes());
        bytes.extend(self.uuid);
        bytes.extend(self.memory.to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (old, new) in &self.pairs {
            bytes.extend(old);
            bytes.extend(new);
        }
        to.write_all(&bytes)
    }

    /// Receives one.
    pub fn receive(from: &mut impl Read) -> io::Result<Request> {
        let number = |from: &mut dyn Read| {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
        };
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let operation = *OPERATIONS.get(number(from)? as usize).ok_or_else(wrong)?;
        let timeout_ms = number(from)?;
        let injected = Injected { fails: number(from)? != 0, hangs: number(from)? != 0 };
        let uuid = device(from)?;
        let mut two = [[0; 8]; 2];
        from.read_exact(&mut two[0])?;
        from.read_exact(&mut two[1])?;
        let [memory, count] = two.map(u64::from_le_bytes);
        let count = usize::try_from(count).ok().filter(|&n| n <= MOST_PAIRS).ok_or_else(wrong)?;
        let pairs = (0..count).map(|_| Ok((device(from)?, device(from)?))).collect::<io::Result<_>>()?;
        Ok(Request { operation, timeout_ms, injected, uuid, memory, pairs })
    }
}

fn device(from: &mut dyn Read) -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    from.read_exact(&mut uuid)?;
    Ok(uuid)
}

impl Reply {
    /// Sends it.
    pub fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&((u64::from(self.state) << 32) | u64::from(self.code)).to_le_bytes())
    }

    /// Receives one.
    pub fn receive(from: &mut impl Read) -> io::Result<Reply> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        let both = u64::from_le_bytes(bytes);
        Ok(Reply { code: both as u32, state: (both >> 32) as u32 })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives() {
        let request = Request {
            operation: Operation::Restore,
            timeout_ms: 7,
            injected: Injected { fails: false, hangs: true },
            uuid: [3; 16],
            memory: 1 << 40,
            pairs: vec![([1; 16], [2; 16]), ([4; 16], [5; 16])],
        };
        let mut bytes = Vec::new();
        request.send(&mut bytes).unwrap();
        assert_eq!(Request::receive(&mut bytes.as_slice()).unwrap(), request);
        for length in 0..bytes.len() {
            assert!(Request::receive(&mut &bytes[..length]).is_err());
        }
        bytes[40] = 65;
        assert!(Request::receive(&mut bytes.as_slice()).is_err());
        let reply = Reply { code: 401, state: 2 };
        let mut bytes = Vec::new();
        reply.send(&mut bytes).unwrap();
        assert_eq!(Reply::receive(&mut bytes.as_slice()).unwrap(), reply);
    }
}
