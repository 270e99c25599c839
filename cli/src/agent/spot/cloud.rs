//! What the clouds tell a machine that they are about to take away.
//!
//! Asked by the watch every few seconds. A notice is one for this machine alone, and says how much time is left, where
//! the cloud says so. Invariant: an answer that is not understood is an error, never "no notice". The addresses are
//! the clouds' own; variables move them, as those of AWS and Google do for their own tools.

use crate::settings::Spot;
use chrono::{DateTime, Utc};
use holdfast_tiers::tier::plain::{Answered, Asker};
use serde::Deserialize;
use std::time::Duration;

/// This machine goes, after so long if that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice(pub Option<Duration>);

/// Google gives so much time (cloud.google.com/compute/docs/instances/spot, "Preemption process").
const GOOGLE: Duration = Duration::from_secs(30);

/// Asks one cloud.
#[derive(Debug)]
pub struct Cloud {
    asker: Asker,
    /// Of AWS, until it is refused.
    token: Option<String>,
    /// Of this machine, at Azure.
    name: Option<String>,
}

impl Cloud {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Cloud, String> {
        Ok(Cloud { asker: Asker::new()?, token: None, name: None })
    }

    /// What the cloud says now.
    ///
    /// # Errors
    /// It does not answer, or is not understood.
    pub fn ask(&mut self, spot: &Spot) -> Result<Option<Notice>, String> {
        match spot {
            Spot::Aws => self.aws(&base("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")),
            Spot::Google => self.google(&base("GCE_METADATA_HOST", "http://metadata.google.internal")),
            Spot::Azure => self.azure(&base("HOLDFAST_AZURE_METADATA", "http://169.254.169.254")),
            Spot::Command(_) => Err("a command is no cloud".to_owned()),
        }
    }

    /// IMDSv2: docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Use the Instance Metadata Service" and "Spot Instance
    /// interruption notices" (`instance-action`; 404 without one).
    fn aws(&mut self, base: &str) -> Result<Option<Notice>, String> {
        const TOKEN: &str = "X-aws-ec2-metadata-token";
        for _ in 0..2 {
            let token = match &self.token {
                Some(token) => token.clone(),
                None => {
                    let ttl = ("X-aws-ec2-metadata-token-ttl-seconds", "21600");
                    let given = good(self.asker.put(&format!("{base}/latest/api/token"), ttl)?)?;
                    self.token.insert(given.trim().to_owned()).clone()
                }
            };
            let url = format!("{base}/latest/meta-data/spot/instance-action");
            let answered = self.asker.get(&url, (TOKEN, &token))?;
            match answered.status {
                404 => return Ok(None),
                // The token is too old.
                401 => self.token = None,
                _ => return of_aws(&good(answered)?, Utc::now()).map(Some),
            }
        }
        Err("it takes no token".to_owned())
    }

    /// cloud.google.com/compute/docs/instances/create-use-spot, "Detect preemption".
    fn google(&self, base: &str) -> Result<Option<Notice>, String> {
        let url = format!("{base}/computeMetadata/v1/instance/preempted");
        match good(self.asker.get(&url, ("Metadata-Flavor", "Google"))?)?.trim() {
            "TRUE" => Ok(Some(Notice(Some(GOOGLE)))),
            "FALSE" => Ok(None),
            other => Err(format!("it says {other:?} where TRUE or FALSE belongs")),
        }
    }

    /// learn.microsoft.com/azure/virtual-machines/linux/scheduled-events: events of all machines of a set.
    fn azure(&mut self, base: &str) -> Result<Option<Notice>, String> {
        const METADATA: (&str, &str) = ("Metadata", "true");
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let url = format!("{base}/metadata/instance/compute/name?api-version=2021-02-01&format=text");
                self.name.insert(good(self.asker.get(&url, METADATA)?)?.trim().to_owned()).clone()
            }
        };
        let url = format!("{base}/metadata/scheduledevents?api-version=2020-07-01");
        of_azure(&good(self.asker.get(&url, METADATA)?)?, &name, Utc::now())
    }
}

/// Where the service is.
fn base(variable: &str, usual: &str) -> String {
    let moved = std::env::var(variable).ok().filter(|moved| !moved.is_empty());
    let base = moved.unwrap_or_else(|| usual.to_owned());
    let base = if base.contains("://") { base } else { format!("http://{base}") };
    base.trim_end_matches('/').to_owned()
}

fn good(answered: Answered) -> Result<String, String> {
    match answered.status {
        200 => Ok(answered.text),
        status => Err(format!("it answers with status {status}")),
    }
}

fn left(at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (at - now).to_std().unwrap_or_default()
}

fn of_aws(text: &str, now: DateTime<Utc>) -> Result<Notice, String> {
    #[derive(Deserialize)]
    struct Action {
        time: Option<DateTime<Utc>>,
    }
    let action: Action = serde_json::from_str(text).map_err(|error| format!("instance-action: {error}"))?;
    Ok(Notice(action.time.map(|time| left(time, now))))
}

fn of_azure(text: &str, name: &str, now: DateTime<Utc>) -> Result<Option<Notice>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Events {
        events: Vec<Event>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Event {
        event_type: String,
        #[serde(default)]
        resources: Vec<String>,
        #[serde(default)]
        not_before: String,
    }
    let all: Events = serde_json::from_str(text).map_err(|error| format!("scheduledevents: {error}"))?;
    let is_ours =
        |event: &&Event| event.event_type == "Preempt" && event.resources.iter().any(|of| of == name);
    // Empty once it has begun.
    let notice = |event: &Event| {
        Notice(match DateTime::parse_from_rfc2822(&event.not_before) {
            Ok(at) => Some(left(at.to_utc(), now)),
            Err(_) => None,
        })
    };
    Ok(all.events.iter().find(is_ours).map(notice))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        "2026-09-18T08:20:00Z".parse().unwrap()
    }

    #[test]
    fn a_notice_of_aws_says_when() {
        let text = r#"{"action": "terminate", "time": "2026-09-18T08:22:00Z"}"#;
        assert_eq!(of_aws(text, now()).unwrap(), Notice(Some(Duration::from_secs(120))));
        let past = r#"{"action": "stop", "time": "2026-09-18T08:00:00Z"}"#;
        assert_eq!(of_aws(past, now()).unwrap(), Notice(Some(Duration::ZERO)));
        assert_eq!(of_aws(r#"{"action": "hibernate"}"#, now()).unwrap(), Notice(None));
        assert!(of_aws("<html>", now()).is_err());
    }

    #[test]
    fn events_of_azure_for_other_machines_are_none() {
        let event = |kind: &str, name: &str, when: &str| {
            format!(
                r#"{{"DocumentIncarnation": 2, "Events": [{{"EventId": "A", "EventType": "{kind}",
                "ResourceType": "VirtualMachine", "Resources": ["b", "{name}"], "NotBefore": "{when}"}}]}}"#
            )
        };
        let when = "Fri, 18 Sep 2026 08:20:30 GMT";
        let of = |text: &str| of_azure(text, "me", now());
        assert_eq!(of(&event("Preempt", "me", when)).unwrap(), Some(Notice(Some(Duration::from_secs(30)))));
        assert_eq!(of(&event("Preempt", "me", "")).unwrap(), Some(Notice(None)));
        assert_eq!(of(&event("Preempt", "other", when)).unwrap(), None);
        assert_eq!(of(&event("Reboot", "me", when)).unwrap(), None);
        assert_eq!(of(r#"{"DocumentIncarnation": 1, "Events": []}"#).unwrap(), None);
        assert!(of("{}").is_err());
    }
}
