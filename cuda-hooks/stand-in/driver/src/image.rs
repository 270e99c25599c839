//! Images of modules: finds the PTX text in what a program gives. Used by `api::module`, `api::library`.
//!
//! A text is ended by a zero. A fat binary begins with a magic number (as does the structure by which nvcc's objects
//! refer to one); its header has the length of all entries, each entry its own header, kind, and length. Layouts as
//! public tools read them (ZLUDA, `cuda_types`; `cuobjdump --list-ptx` shows the same).

use crate::code::{Answer, Code};
use crate::pointer::{In, Out};

const WRAPPER: u32 = 0x4662_43b1;
const FAT_BINARY: u32 = 0xba55_ed50;
const ELF: u32 = 0x464c_457f;
/// An entry of a fat binary that is PTX.
const KIND_PTX: u16 = 1;
/// Flags of an entry: compressed by LZ4, by Zstandard.
const COMPRESSED: u64 = 0x2000 | 0x8000;
const MOST: usize = 256 << 20;

fn number(data: In<u8>, at: usize) -> Answer<u64> {
    In::<u64>::get(data.offset(at).cast())
}

/// The text of an image in memory.
pub fn text(data: In<u8>) -> Answer<String> {
    let magic: u32 = data.cast::<u32>().get()?;
    match magic {
        WRAPPER => text(data.offset(8).cast::<In<u8>>().get()?),
        FAT_BINARY => {
            let head = number(data, 4)?;
            let (header, length) = ((head >> 16) & 0xffff, number(data, 8)?);
            let length = usize::try_from(length).ok().filter(|&n| n <= MOST).ok_or(Code::INVALID_IMAGE)?;
            in_entries(&data.offset(header as usize).list(length)?)
        }
        ELF => Err(Code::NO_BINARY_FOR_GPU),
        _ => {
            let mut bytes = Vec::new();
            while bytes.len() < MOST {
                match data.at(bytes.len())? {
                    0 => return String::from_utf8(bytes).map_err(|_| Code::INVALID_IMAGE),
                    byte => bytes.push(byte),
                }
            }
            Err(Code::INVALID_IMAGE)
        }
    }
}

/// The text of an image in a file.
pub fn text_of_file(bytes: Vec<u8>) -> Answer<String> {
    match bytes.first_chunk().map(|magic| u32::from_le_bytes(*magic)) {
        Some(ELF) => Err(Code::NO_BINARY_FOR_GPU),
        Some(FAT_BINARY) => in_entries(bytes.get(16..).unwrap_or_default()),
        _ => String::from_utf8(bytes).map_err(|_| Code::INVALID_IMAGE),
    }
}

fn in_entries(mut bytes: &[u8]) -> Answer<String> {
    let word = |bytes: &[u8], at: usize| {
        let four = bytes.get(at..at + 4).and_then(|four| four.first_chunk().copied());
        four.map(u32::from_le_bytes).ok_or(Code::INVALID_IMAGE)
    };
    while bytes.len() >= 64 {
        let (kind, header) = (word(bytes, 0)? as u16, word(bytes, 4)? as usize);
        let (padded, payload) = (word(bytes, 8)? as usize, word(bytes, 16)? as usize);
        let flags = u64::from(word(bytes, 40)?);
        let end = header.checked_add(padded).filter(|&end| end <= bytes.len()).ok_or(Code::INVALID_IMAGE)?;
        if kind == KIND_PTX {
            if flags & COMPRESSED != 0 {
                eprintln!("stand-in: the PTX of a fat binary is compressed: build with nvcc --no-compress");
                return Err(Code::NO_BINARY_FOR_GPU);
            }
            let whole = if payload == 0 { padded } else { payload };
            let text = bytes.get(header..header + whole.min(padded)).ok_or(Code::INVALID_IMAGE)?;
            let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
            return String::from_utf8(text.to_vec()).map_err(|_| Code::INVALID_IMAGE);
        }
        bytes = &bytes[end..];
    }
    Err(Code::NO_BINARY_FOR_GPU)
}

/// CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
const LOG: (u32, u32) = (5, 6);

/// Writes what a compiler would say, where the program wants it.
pub fn log(said: &str, options: In<u32>, values: In<usize>, count: u32) {
    let (mut buffer, mut size) = (None, 0);
    for index in 0..count as usize {
        let (Ok(option), Ok(value)) = (options.at(index), values.at(index)) else { return };
        if option == LOG.0 {
            buffer = values.offset(8 * index).cast::<Out<u8>>().get().ok();
        } else if option == LOG.1 {
            size = value;
        }
    }
    if let Some(buffer) = buffer
        && size > 0
    {
        let mut bytes: Vec<u8> = said.bytes().take(size - 1).collect();
        bytes.push(0);
        // a null pointer is no buffer
        let _ = buffer.fill(&bytes);
    }
}
