//! A control message of any bytes: decoded or refused; what is decoded is the same after another round.
#![no_main]

use holdfast_image::control::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let again = serde_json::to_vec(&request).expect("a request is JSON");
        assert_eq!(serde_json::from_slice::<Request>(&again).expect("what was written is read"), request);
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(data) {
        let again = serde_json::to_vec(&reply).expect("a reply is JSON");
        assert_eq!(serde_json::from_slice::<Reply>(&again).expect("what was written is read"), reply);
    }
});
