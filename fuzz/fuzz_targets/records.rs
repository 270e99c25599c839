//! Any bytes as what a store has as JSON: the process record of an image, what is known of tiers, a tier in
//! `job.json`. Read or refused; what is read is the same after another round.
#![no_main]

use holdfast_image::record::ProcessRecord;
use holdfast_tiers::stack::{TierSpec, TiersRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = ProcessRecord::decode(ProcessRecord::KIND, data) {
        let again = record.encode().expect("a record is JSON");
        let again = ProcessRecord::decode(ProcessRecord::KIND, &again).expect("what was written is read");
        assert_eq!(again, record);
    }
    if let Ok(record) = serde_json::from_slice::<TiersRecord>(data) {
        let again = serde_json::to_vec(&record).expect("it is JSON");
        assert_eq!(serde_json::from_slice::<TiersRecord>(&again).expect("what was written is read"), record);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(spec) = text.parse::<TierSpec>()
    {
        assert_eq!(spec.to_string().parse::<TierSpec>().expect("what was displayed is understood"), spec);
    }
});
