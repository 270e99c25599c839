//! The messages of FUSE (include/uapi/linux/fuse.h), as far as a file system with one file that is only read needs
//! them.
//!
//! Pure. What must hold: a request comes from the kernel, and is taken apart with care all the same: one that is too
//! short or unknown is answered by ENOSYS, or not at all.

/// Room for a request: what the kernel demands (FUSE_MIN_READ_BUFFER), and more than any name.
pub const REQUEST_LEN: usize = 64 << 10;
/// The file's; the folder that it is in has number 1.
const NODE: u64 = 2;
const ROOT: u64 = 1;
/// Length of the header of a request and of an answer.
const IN_HEAD: usize = 40;
const OUT_HEAD: usize = 16;
/// A time that does not pass: seconds.
const FOR_EVER: u64 = 1 << 30;
/// As large as a file can be: whole pages.
const SIZE: u64 = (i64::MAX as u64) & !4095;
/// Longest range that the kernel reads ahead by itself: bytes. No kernel takes more from us than its own default.
const READ_AHEAD: u32 = 128 << 10;
/// Longest range of one request: what a file that was said to be read in sequence is read ahead by (mm/fadvise.c,
/// POSIX_FADV_SEQUENTIAL: twice as much).
pub const LONGEST: u32 = 2 * READ_AHEAD;

const FUSE_ASYNC_READ: u32 = 1;
const FUSE_MAX_PAGES: u32 = 1 << 22;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Linux 5.16: close(2) asks nothing, and so waits for nothing.
const FOPEN_NOFLUSH: u32 = 1 << 5;
/// Number of an open file of the process that reads ahead, and of any other.
const AHEAD: u64 = 1;
const ORDINARY: u64 = 0;

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first one: flags that the kernel offers.
    Init(u32),
    /// Is there a file of this name?
    Lookup(Vec<u8>),
    /// About the file, or the folder: its number.
    Attributes(u64),
    /// Open it. By O_NONBLOCK, which means nothing to a file, the process that reads ahead says that it is that.
    Open {
        /// It is.
        ahead: bool,
    },
    /// An open file has been closed by the last that had it, mappings included.
    Release {
        /// As at [`Request::Open`].
        ahead: bool,
    },
    /// What is in it.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// Who waits for the answer to this request has got a signal.
    Interrupt(u64),
    /// About the file system.
    Statistics,
    /// That it is no longer needed: answered by nothing.
    Done,
    /// Not answered at all.
    Silent,
    /// Another one.
    Unknown,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Which request it is, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its number.
    pub unique: u64,
    /// The thread that asks, as the server's pid namespace has it; 0: none of that.
    pub thread: u32,
}

impl Request {
    /// A request and its head. `None`: too short to be answered.
    pub fn parse(bytes: &[u8]) -> Option<(Head, Request)> {
        let (opcode, unique, node) = (u32_at(bytes, 4)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let head = Head { unique, thread: u32_at(bytes, 32)? };
        let body = bytes.get(IN_HEAD..)?;
        Some((head, Request::of(opcode, node, body).unwrap_or(Request::Unknown)))
    }

    fn of(opcode: u32, node: u64, body: &[u8]) -> Option<Request> {
        Some(match opcode {
            1 if node == ROOT => Request::Lookup(body.split(|byte| *byte == 0).next()?.to_vec()),
            // FORGET, BATCH_FORGET.
            2 | 42 => Request::Silent,
            3 => Request::Attributes(node),
            14 if node == NODE => {
                Request::Open { ahead: u32_at(body, 0)? & libc::O_NONBLOCK.cast_unsigned() != 0 }
            }
            15 if node == NODE => {
                let len = u32_at(body, 16)?.min(1 << 20);
                Request::Read { offset: u64_at(body, 8)?, len: len as usize }
            }
            17 => Request::Statistics,
            18 if node == NODE => Request::Release { ahead: u64_at(body, 0)? == AHEAD },
            // DESTROY.
            38 => Request::Done,
            36 => Request::Interrupt(u64_at(body, 0)?),
            26 => Request::Init(u32_at(body, 12)?),
            _ => Request::Unknown,
        })
    }
}

/// The file, to those who ask.
#[derive(Clone, Debug)]
pub struct Identity {
    name: Vec<u8>,
    user: u32,
    group: u32,
}

/// Numbers one after the other.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn u16(mut self, number: u16) -> Answer {
        self.0.extend(number.to_ne_bytes());
        self
    }
    fn u32(mut self, number: u32) -> Answer {
        self.0.extend(number.to_ne_bytes());
        self
    }
    fn u64(mut self, number: u64) -> Answer {
        self.0.extend(number.to_ne_bytes());
        self
    }
    fn zeros(mut self, len: usize) -> Answer {
        self.0.resize(self.0.len() + len, 0);
        self
    }
}

impl Identity {
    /// By its name and owner.
    pub fn new(name: &str, user: u32, group: u32) -> Identity {
        Identity { name: name.as_bytes().to_vec(), user, group }
    }

    /// What is answered to all but [`Request::Read`]: bytes or an errno; `None`: nothing at all.
    pub fn answer(&self, request: &Request) -> Option<Result<Vec<u8>, i32>> {
        let answer = Answer::default();
        let answer = match request {
            Request::Init(offered) => {
                // struct fuse_init_out: version, read ahead, flags, background requests and from when on there are
                // too many, bytes of a write, granularity of times, pages of a request, and what stays as it is.
                let answer =
                    answer.u32(7).u32(31).u32(READ_AHEAD).u32(offered & (FUSE_ASYNC_READ | FUSE_MAX_PAGES));
                let pages = u16::try_from(LONGEST / 4096).unwrap_or(1);
                answer.u16(64).u16(48).u32(4096).u32(1).u16(pages).zeros(34)
            }
            Request::Lookup(name) if *name == self.name => {
                self.attributes(answer.u64(NODE).u64(0).u64(FOR_EVER).u64(FOR_EVER).zeros(8), NODE)
            }
            Request::Lookup(_) => return Some(Err(libc::ENOENT)),
            Request::Attributes(node) => self.attributes(answer.u64(FOR_EVER).zeros(8), *node),
            Request::Open { ahead } => {
                answer.u64(if *ahead { AHEAD } else { ORDINARY }).u32(FOPEN_KEEP_CACHE | FOPEN_NOFLUSH).u32(0)
            }
            // struct fuse_kstatfs: blocks, free, available; files, free; block, name, fragment.
            Request::Statistics => answer.zeros(40).u32(4096).u32(255).u32(4096).zeros(28),
            Request::Release { .. } | Request::Done => answer,
            Request::Silent | Request::Interrupt(_) => return None,
            Request::Read { .. } | Request::Unknown => return Some(Err(libc::ENOSYS)),
        };
        Some(Ok(answer.0))
    }

    /// struct fuse_attr.
    fn attributes(&self, answer: Answer, node: u64) -> Answer {
        let (size, mode) =
            if node == NODE { (SIZE, libc::S_IFREG | 0o400) } else { (0, libc::S_IFDIR | 0o500) };
        // Number, size, blocks, three times; their parts; mode, links, owner, group, device, block, flags.
        let answer = answer.u64(node).u64(size).zeros(32).zeros(12);
        answer.u32(mode).u32(1).u32(self.user).u32(self.group).u32(0).u32(4096).u32(0)
    }
}

/// The head of an answer with `len` bytes.
pub fn answer_head(unique: u64, errno: i32, len: usize) -> [u8; OUT_HEAD] {
    let mut head = [0; OUT_HEAD];
    head[..4].copy_from_slice(&u32::try_from(OUT_HEAD + len).unwrap_or(0).to_ne_bytes());
    head[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(IN_HEAD + body.len()).unwrap();
        let head = Answer::default().u32(len).u32(opcode).u64(77).u64(node).zeros(8).u32(55).zeros(4);
        [&head.0, body].concat()
    }

    #[test]
    fn requests_are_understood() {
        let parse = |opcode, node, body: &[u8]| {
            let (head, request) = Request::parse(&request(opcode, node, body)).unwrap();
            assert_eq!(head, Head { unique: 77, thread: 55 });
            request
        };
        let read = Answer::default().u64(0).u64(8192).u32(4096).zeros(20).0;
        assert_eq!(parse(15, NODE, &read), Request::Read { offset: 8192, len: 4096 });
        assert_eq!(parse(15, NODE, &read[..19]), Request::Unknown);
        assert_eq!(parse(15, ROOT, &read), Request::Unknown);
        assert_eq!(parse(1, ROOT, b"name\0rest"), Request::Lookup(b"name".to_vec()));
        let open = |flags: i32| parse(14, NODE, &Answer::default().u32(flags.cast_unsigned()).u32(0).0);
        assert_eq!(open(libc::O_RDONLY), Request::Open { ahead: false });
        assert_eq!(open(libc::O_NONBLOCK), Request::Open { ahead: true });
        let release = |number: u64| parse(18, NODE, &Answer::default().u64(number).zeros(16).0);
        assert_eq!(release(AHEAD), Request::Release { ahead: true });
        assert_eq!(release(ORDINARY), Request::Release { ahead: false });
        assert_eq!(parse(36, 0, &99_u64.to_ne_bytes()), Request::Interrupt(99));
        assert_eq!(parse(26, 0, &Answer::default().u32(7).u32(44).u32(1).u32(9).0), Request::Init(9));
        assert_eq!(parse(26, 0, &[0; 15]), Request::Unknown);
        assert_eq!(parse(2, NODE, &[]), Request::Silent);
        assert_eq!(parse(9, NODE, &[]), Request::Unknown);
        assert_eq!(Request::parse(&[0; IN_HEAD - 1]), None);
    }

    #[test]
    fn answers_have_the_lengths_of_the_kernel() {
        let identity = Identity::new("name", 3, 4);
        let len = |request: Request| identity.answer(&request).map(|answer| answer.map(|bytes| bytes.len()));
        assert_eq!(len(Request::Init(u32::MAX)), Some(Ok(64)));
        assert_eq!(len(Request::Lookup(b"name".to_vec())), Some(Ok(128)));
        assert_eq!(len(Request::Lookup(b"nam".to_vec())), Some(Err(libc::ENOENT)));
        assert_eq!(len(Request::Attributes(NODE)), Some(Ok(104)));
        assert_eq!(len(Request::Open { ahead: true }), Some(Ok(16)));
        assert_eq!(len(Request::Release { ahead: true }), Some(Ok(0)));
        assert_eq!(len(Request::Interrupt(1)), None);
        assert_eq!(len(Request::Statistics), Some(Ok(80)));
        assert_eq!(len(Request::Done), Some(Ok(0)));
        assert_eq!(len(Request::Silent), None);
        assert_eq!(len(Request::Unknown), Some(Err(libc::ENOSYS)));
        assert_eq!(answer_head(5, libc::EIO, 0)[..8], [16, 0, 0, 0, 251, 255, 255, 255]);
    }
}
