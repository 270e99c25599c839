//! Any bytes as a frame by any codec: unpacked or refused, into the pages that the frame has and nothing else; and any
//! pages come back from what they were packed into, whole and only whole.
#![no_main]

use holdfast_tiers::codec::{Codec, Coder, decode};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

/// Most bytes that the pages of a frame have.
const MOST: usize = 1 << 20;

thread_local! {
    static CODER: RefCell<Coder> = RefCell::default();
}

fuzz_target!(|data: (u8, u32, &[u8])| {
    let (codec, len, bytes) = data;
    let codec = Codec::ALL[usize::from(codec) % Codec::ALL.len()];
    let mut raw = vec![0xa5; len as usize % (MOST + 1)];
    let _ = decode(codec, bytes, &mut raw);
    CODER.with_borrow_mut(|coder| {
        let Some(packed) = coder.encode(codec, bytes).filter(|packed| packed.len() < bytes.len()) else { return };
        let mut back = vec![0; bytes.len()];
        decode(codec, packed, &mut back).expect("what was packed is unpacked");
        assert!(back == bytes);
        assert!(decode(codec, &packed[..packed.len() - 1], &mut back).is_err());
        assert!(decode(codec, packed, &mut back[1..]).is_err());
    });
});
