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
/// Flags of an entry: compressed by LZ4 (nvcc 12 and before), by Zstandard (nvcc 13).
const LZ4: u32 = 0x2000;
const ZSTANDARD: u32 = 0x8000;
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
        let end = header.checked_add(padded).filter(|&end| end <= bytes.len()).ok_or(Code::INVALID_IMAGE)?;
        if kind == KIND_PTX {
            let whole = if payload == 0 { padded } else { payload.min(padded) };
            let stored = bytes.get(header..header + whole).ok_or(Code::INVALID_IMAGE)?;
            let text = unpacked(stored, word(bytes, 40)?, word(bytes, 56)? as usize)?;
            let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
            return String::from_utf8(text.to_vec()).map_err(|_| Code::INVALID_IMAGE);
        }
        bytes = &bytes[end..];
    }
    Err(Code::NO_BINARY_FOR_GPU)
}

/// What an entry holds; `length` is that of the text.
fn unpacked(stored: &[u8], flags: u32, length: usize) -> Answer<Vec<u8>> {
    if length > MOST {
        return Err(Code::INVALID_IMAGE);
    }
    let text = if flags & ZSTANDARD != 0 {
        zstd::bulk::decompress(stored, length).ok()
    } else if flags & LZ4 != 0 {
        lz4_flex::block::decompress(stored, length).ok()
    } else {
        Some(stored.to_vec())
    };
    text.ok_or(Code::INVALID_IMAGE)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `extern "C" __global__ void triple(int *x) { x[threadIdx.x] *= 3; }`, by nvcc 13.0 with
    /// `-gencode arch=compute_75,code=compute_75 -fatbin -Xfatbin --compress-mode=size`.
    const BY_SIZE: &str = "\
        50ed55ba0100100040010000000000000100010150000000f000000000000000e900000040000000000009004b00000000000000\
        000000001180000000000000000000000000000079010000000000004800000000000000000000000000000028b52ffd607900fd\
        0600424c261950d703fcbf0906aa06032c1955958dc4b2c6fcda0c5538c98c80fbe73eb7cd5bc743bf851f0746a3629f4794fa6b\
        a53e653caaad577b8c6d5fef2eb0cf2cca6734308d2c3cbdb59fee4cf2f9383016d857ec8e305526b3914c0ea071440f279bdf3d\
        1f9c802099600f299ae9f52e587cddbc219777651f5a1c5d7d65026d7735a4b5cdb5d2774481280db79d32ddefc42fb0b2aece36\
        7b0f1e28404494dc036046696418c61e2000313420b40610f19ea6fda6535ee0b4e966e3433ea8d1c3e0a87da6fa4d1977b7f598\
        e8e1644f9443e3b4bbfecdfd4de6ca074200000000000000";
    /// The same with `--compress-mode=speed`: LZ4.
    const BY_SPEED: &str = "\
        50ed55ba010010008001000000000000010001015000000030010000000000003001000040000000000009004b00000000000000\
        0000000011200000000000000000000000000000790100000000000048000000000000000000000000000000130a0100f01c2e76\
        657273696f6e20392e300a2e74617267657420736d5f37350a2e616464726573735f73697a652036343100f3142e76697369626c\
        65202e656e74727920747269706c65280a2e706172616d202e7536341400115f1200f4085f300a290a7b0a2e726567202e623332\
        2025723c343e3b1100f2003634202572643c353e3b0a0a0a6c6446000145007a257264312c205b4c00f4025d3b0a637674612e74\
        6f2e676c6f62616c2b0021322c3100713b0a6d6f762e756700f304312c20257469642e783b0a6d756c2e776964651a002064332e\
        00b2312c20343b0a6164642e73860010341600034a0020333b8e0004640001500092322c205b257264345d5000416c6f2e731800\
        014d0085322c20333b0a737497002333322e00001e00d0333b0a7265743b0a0a7d0a0a00";

    fn bytes(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    }

    /// An entry with the fields that are read.
    fn entry(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; 64];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..12].copy_from_slice(&(content.len() as u32).to_le_bytes());
        entry.extend(content);
        entry
    }

    #[test]
    fn the_text_of_a_fat_binary_is_found() {
        let texts = [BY_SIZE, BY_SPEED].map(|hex| text_of_file(bytes(hex)).unwrap());
        assert!(texts[0].contains(".visible .entry triple("));
        assert_eq!(texts[0], texts[1]);
        let machine_code = entry(2, &[0; 100]);
        let both = [machine_code.clone(), entry(KIND_PTX, b".version 8.0\0\0\0\0")].concat();
        assert_eq!(in_entries(&both).unwrap(), ".version 8.0");
        assert_eq!(in_entries(&machine_code), Err(Code::NO_BINARY_FOR_GPU));
    }

    #[test]
    fn what_is_damaged_is_refused() {
        for hex in [BY_SIZE, BY_SPEED] {
            let whole = bytes(hex);
            for length in 16..whole.len() {
                assert!(text_of_file(whole[..length].to_vec()).is_err());
            }
            for at in 16..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x81;
                let _ = text_of_file(damaged);
            }
        }
    }
}
