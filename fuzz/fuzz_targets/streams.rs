//! Any bytes as what a server of streams says to a reader, as what a reader asks a server for, and as records of a log,
//! with right words where they have the form of one. Taken or refused; what is taken stays within what has come, what
//! is asked for within its folder, and data of records within the log.
#![no_main]

use holdfast_image::framing;
use holdfast_streams::layout::{self, FileHead, PAGE, RECORD_HEAD, RecordHead};
use holdfast_streams::message::{Message, Parts};
use holdfast_streams::objects::Objects;
use holdfast_streams::place::Place;
use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};

/// A hostile server: no more is kept than has come.
fn as_reader(mut inbox: Vec<u8>) {
    let all = inbox.len();
    let mut object: Option<Parts> = None;
    while let Ok(Some((message, body))) = framing::take::<Message>(&mut inbox) {
        let again = serde_json::to_vec(&message).expect("a message is JSON");
        assert_eq!(serde_json::from_slice::<Message>(&again).expect("what was written is read"), message);
        match (&message, &mut object) {
            (Message::Object { bytes, .. }, None) => object = Some(Parts::of(*bytes)),
            (_, Some(parts)) => {
                if parts.add(&message, &body).is_err() {
                    return;
                }
            }
            _ => {}
        }
        if object.as_ref().is_some_and(Parts::are_whole) {
            assert!(object.take().expect("it is there").take().len() <= all);
        }
    }
}

/// A hostile reader: what it names is in the folder.
fn as_server(mut inbox: Vec<u8>) {
    let Ok(Some((Message::Ask(ask), _))) = framing::take::<Message>(&mut inbox) else { return };
    if let Ok(place) = Place::parse(&ask.stream, Path::new("/folder")) {
        let path = place.path();
        let below = path.strip_prefix("/folder").expect("it is in the folder");
        assert!(
            below.components().count() == 2
                && below.components().all(|part| matches!(part, Component::Normal(_)))
        );
    }
}

/// A log: `at` is where its oldest record is.
fn as_log(at: u64, ring: &[u8]) {
    let file = FileHead { capacity: 16 * PAGE, id: 7 };
    let (mut objects, mut position) = (Objects::default(), at - at % layout::LINE);
    for _ in 0..64 {
        let place = usize::try_from(position % file.capacity).expect("it is small");
        let Some(bytes) = ring.get(place..) else { return };
        let Some(head) = RecordHead::parse(bytes, position, &file) else { return };
        let table = RECORD_HEAD..RECORD_HEAD + head.table_len as usize;
        let Some(entries) = bytes.get(table).and_then(|table| layout::parse_table(&head, table)) else {
            return;
        };
        objects.apply(&head, entries);
        for object in objects.all().values() {
            assert!(object.pages().len() as u64 == object.size.div_ceil(PAGE));
            for link in &object.links {
                let end = link.data.checked_add(object.data_len(link)).expect("it is in the record");
                assert!(link.record <= link.data && end - link.record <= file.capacity);
            }
        }
        position += head.len;
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match (kind % 3, data.split_first_chunk::<8>()) {
        (0, _) => as_reader(data.to_vec()),
        (1, _) => as_server(data.to_vec()),
        (_, Some((at, ring))) => as_log(u64::from_le_bytes(*at), ring),
        _ => {}
    }
});
