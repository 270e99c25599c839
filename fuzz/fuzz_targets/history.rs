//! Any bytes as the access history of an image: decoded or refused; what is decoded is the same after another round.
#![no_main]

use holdfast_pager::History;
use libfuzzer_sys::fuzz_target;

fn decode(bytes: &[u8]) {
    let Ok(history) = History::decode(bytes) else { return };
    let again = History::decode(&history.encode()).expect("what was written is read");
    assert!(again.encode() == history.encode());
    let _ = history.period();
}

fuzz_target!(|data: &[u8]| {
    decode(data);
    // Behind the mark and the version of a history that says nothing.
    let mut marked = History::new().encode();
    marked.truncate(marked.len().min(6));
    marked.extend_from_slice(data);
    decode(&marked);
});
