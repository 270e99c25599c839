//! Names of signals, as a user writes them and as messages have them.

const SIGNALS: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("PWR", libc::SIGPWR),
];

/// Those that ask for nothing, but end programs.
const OTHER_SIGNALS: &[(&str, i32)] = &[
    ("KILL", libc::SIGKILL),
    ("SEGV", libc::SIGSEGV),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("ILL", libc::SIGILL),
    ("PIPE", libc::SIGPIPE),
    ("SYS", libc::SIGSYS),
    ("TRAP", libc::SIGTRAP),
    ("XFSZ", libc::SIGXFSZ),
];

/// Parses a signal that may ask for a checkpoint: `USR1`, `SIGUSR1` or a number.
///
/// # Errors
/// Says what is accepted.
pub fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = name.parse::<i32>().ok();
    SIGNALS
        .iter()
        .find(|(known, value)| *known == name || number == Some(*value))
        .map(|&(_, value)| value)
        .or(number.filter(|n| (34..=64).contains(n)))
        .ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!(
                "{text:?} is not a signal that can ask for a checkpoint; use one of {}, 34 to 64",
                names.join(", ")
            )
        })
}

/// Parses any signal that may be sent: `KILL`, `SIGKILL` or a number.
///
/// # Errors
/// Says what is accepted.
pub fn parse_any_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = name.parse::<i32>().ok().filter(|number| (1..=64).contains(number));
    let known = SIGNALS.iter().chain(OTHER_SIGNALS).find(|(known, _)| *known == name);
    known
        .map(|&(_, value)| value)
        .or(number)
        .ok_or_else(|| format!("{text:?} is not a signal; write TERM, KILL or a number"))
}

/// Parses `TERM=checkpoint-stop`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_on(text: &str) -> Result<i32, String> {
    match text.split_once('=') {
        Some((signal, "checkpoint-stop")) => parse_signal(signal),
        _ => Err(format!("{text:?} is not SIGNAL=checkpoint-stop, for example TERM=checkpoint-stop")),
    }
}

/// The name of a signal, for messages.
pub fn signal_name(signal: i32) -> String {
    SIGNALS
        .iter()
        .chain(OTHER_SIGNALS)
        .find(|(_, value)| *value == signal)
        .map_or_else(|| format!("signal {signal}"), |(name, _)| format!("SIG{name}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn signals() {
        assert_eq!(parse_signal("USR1").unwrap(), libc::SIGUSR1);
        assert_eq!(parse_signal("sigterm").unwrap(), libc::SIGTERM);
        assert_eq!(parse_signal("12").unwrap(), libc::SIGUSR2);
        assert_eq!(parse_signal("40").unwrap(), 40);
        for text in ["KILL", "STOP", "9", "SEGV", "0", "65", "", "CHLD"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
        assert_eq!(parse_on("TERM=checkpoint-stop").unwrap(), libc::SIGTERM);
        assert!(parse_on("TERM=stop").is_err());
        assert!(parse_on("TERM").is_err());
    }
}
