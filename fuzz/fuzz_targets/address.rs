//! Any text as the address of a tier: understood or refused; what is understood means the same when it is displayed.
#![no_main]

use holdfast_tiers::tier::address::Address;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(address) = Address::parse(text) {
        assert_eq!(Address::parse(&address.to_string()).expect("what was displayed is understood"), address);
    }
});
