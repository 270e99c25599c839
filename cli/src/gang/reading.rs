//! What comes from another member, as long as it is there: a thread for each connection.
//!
//! Called by who leads and by who has joined. Each side says now and then that it is there: an agent that hangs, or
//! whose host is frozen, has a kernel that still acknowledges what it is sent (tcp(7), TCP_USER_TIMEOUT), and is found
//! out only by its silence. Invariant: the thread waits for nothing but this connection. Fails by: the member is lost,
//! with the reason.

use super::message::Message;
use super::seat::Seat;
use super::wire::Wire;
use std::io;
use std::time::{Duration, Instant};

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// So often each side says something.
    pub(super) beat: Duration,
    /// After that the other one is lost: long enough for a host that is so busy that an agent does not run.
    pub(super) most: Duration,
}

/// Of all gangs.
pub(super) const SILENCE: Silence = Silence { beat: Duration::from_secs(10), most: Duration::from_secs(60) };

/// Reads what comes from a member until the connection is over.
pub(super) fn read_all(seat: &Seat, from: u32, wire: &Wire, silence: Silence) {
    let end = match read_until_lost(seat, from, wire, silence) {
        Ok(()) => format!("it has not answered for {} s", silence.most.as_secs()),
        Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => "its agent has ended".to_owned(),
        Err(end) => end.to_string(),
    };
    wire.close();
    seat.lose(from, &format!("it was lost: {end}"));
}

/// Up to an error, or up to the longest silence.
fn read_until_lost(seat: &Seat, from: u32, wire: &Wire, silence: Silence) -> io::Result<()> {
    let (mut heard, mut said) = (Instant::now(), Instant::now());
    while heard.elapsed() < silence.most {
        if said.elapsed() >= silence.beat {
            wire.send(&Message::Here, &[])?;
            said = Instant::now();
        }
        match wire.receive(Some(said + silence.beat)) {
            Ok((Message::Here, _)) => heard = Instant::now(),
            Ok((message, body)) => {
                heard = Instant::now();
                seat.take(from, message, body);
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
