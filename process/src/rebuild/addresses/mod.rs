//! Addresses at a restart on another host: which those of the image are now, for its sockets and for its programs.
//!
//! Called by the agent before there are new processes. All members of a gang do so together ([`Phase::Addresses`]):
//! each says what its host had and what this one has ([`choose`]), and all come to one answer ([`agree`]). Sockets are
//! then made at the new addresses ([`holdfast_image::addresses::move_sockets`]), by the front as well; programs go on
//! with those that they know, which libholdfast translates ([`tables`]), from restart to restart.
//! How it fails: an address without a new one, or two that would be one: refused by name, with what to do. Nothing was
//! changed.

mod agree;
mod choose;
mod tables;

use self::agree::{Agreed, Said};
use self::choose::Old;
use crate::gang::{self, Gang, Phase};
use crate::host_addresses;
use crate::rebuild::error::RebuildError;
use holdfast_image::addresses::{move_sockets, used};
use holdfast_image::host_addresses::MovedAddress;
use holdfast_image::record::ProcessRecord;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub use choose::Pair;
pub use tables::file;
pub(crate) use tables::write;

/// How long other members may take to come as far.
const TOGETHER: Duration = Duration::from_secs(120);

/// What was decided.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// From an address that a socket of the image has, or its peer, to the one that it gets.
    pub sockets: Vec<Pair>,
    /// What programs know.
    pub moved: Vec<MovedAddress>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Decides, and moves the sockets of the record. `asked`: `--map-host`.
///
/// # Errors
/// See the head; a member of the gang has failed.
pub fn decide(
    record: &mut ProcessRecord,
    asked: &[Pair],
    gang: Option<&dyn Gang>,
) -> Result<Addresses, RebuildError> {
    let (host, used) = (record.host.addresses.clone(), used(record));
    let here = host_addresses::of_process("self");
    let choice = choose::choose(&Old { host: &host, used: &used }, &here, asked, gang.is_some())
        .map_err(RebuildError::Refused)?;
    let network = if host.network.is_empty() { &record.host.boot_id } else { &host.network };
    let own = Said::of(network, &choice, &used, &host.moved);
    let agreed = match gang {
        None => agree::agree(&[own], 0),
        Some(gang) => {
            let said = gang::meet(gang, Phase::Addresses, &own.lines(), Instant::now() + TOGETHER)?;
            let said = said
                .iter()
                .enumerate()
                .map(|(member, lines)| Said::parse(lines).ok_or_else(|| gang::not_understood(member)));
            agree::agree(&said.collect::<Result<Vec<_>, _>>()?, gang.member() as usize)
        }
    };
    let Agreed { step, moved, notes } = agreed.map_err(RebuildError::Refused)?;
    let found = move_sockets(record, &step);
    let sockets: Vec<Pair> =
        step.iter().filter(|(from, _)| found.contains(from)).map(|(a, b)| (*a, *b)).collect();
    let changed = moved.iter().any(|pair| pair.known != pair.present);
    let mut notes: Vec<String> = choice.notes.into_iter().chain(notes).collect();
    if let Some(process) = record.processes().find(|process| changed && process.inject.shared.0 == 0) {
        let (pid, name) = (process.pid, name(process));
        if !sockets.is_empty() || !asked.is_empty() {
            return Err(RebuildError::Refused(format!(
                "process {pid} ({name}) runs without libholdfast, which would translate addresses for it: restart the \
                 program where its hosts have the addresses of the checkpoint"
            )));
        }
        notes.push(format!(
            "process {pid} ({name}) runs without libholdfast: it finds addresses as they are here"
        ));
    }
    Ok(Addresses { sockets, moved, notes })
}

/// Has the sockets of another copy of the record where [`decide`] has them.
pub fn follow(record: &mut ProcessRecord, sockets: &[Pair]) {
    let step: BTreeMap<IpAddr, IpAddr> = sockets.iter().copied().collect();
    move_sockets(record, &step);
}

fn name(process: &ProcessRecord) -> String {
    process.threads.first().map_or_else(String::new, |leader| leader.comm.to_string())
}
