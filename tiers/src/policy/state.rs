//! The life cycle of an instance: a segment on one tier.
//!
//! Used by [`super::Hierarchy`].
//! Invariant: a change that the table does not have is an error, and changes nothing.

/// Where an instance is in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Room is reserved, nothing has moved yet.
    Init,
    /// Bytes arrive from the application or a faster tier.
    Writing,
    /// All bytes are here; no slower tier has them yet.
    Written,
    /// All bytes are here, and a slower tier has them too.
    Flushed,
    /// Bytes arrive from a slower tier.
    Reading,
    /// Here for a restore: not to be evicted before that.
    Ready,
    /// The restore has had it, or a faster tier has it for the restore.
    Consumed,
}

/// What happens to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A copy from the application or a faster tier begins.
    WriteStarted,
    /// It is complete.
    WriteDone,
    /// A slower tier has all of it.
    FlushDone,
    /// A copy from a slower tier begins.
    ReadStarted,
    /// It is complete.
    ReadDone,
    /// A restore waits for what is here already.
    Wanted,
    /// A faster tier has it for the restore.
    Promoted,
    /// The application has it.
    Delivered,
    /// It was there for a restore, and its room is needed for more urgent things.
    Demoted,
    /// The copy of the faster tier is gone, or it is wanted a second time.
    Needed,
}

/// A change that the state does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an instance in state {state:?} cannot have the change {change:?}")]
pub struct IllegalChange {
    /// The state, which it keeps.
    pub state: State,
    /// What was asked for.
    pub change: Change,
}

impl State {
    /// The state after a change.
    pub fn after(self, change: Change) -> Result<State, IllegalChange> {
        use Change as C;
        use State as S;
        Ok(match (self, change) {
            (S::Init, C::WriteStarted) => S::Writing,
            (S::Init, C::ReadStarted) => S::Reading,
            (S::Writing, C::WriteDone) => S::Written,
            (S::Written | S::Flushed, C::FlushDone) => S::Flushed,
            // What is there for a restore, or was, is flushed all the same.
            (S::Ready | S::Consumed, C::FlushDone) => self,
            (S::Reading, C::ReadDone) => S::Ready,
            (S::Written | S::Flushed | S::Ready | S::Consumed, C::Wanted) => S::Ready,
            (S::Written | S::Flushed | S::Ready | S::Consumed, C::Promoted) => S::Consumed,
            (S::Ready, C::Delivered) => S::Consumed,
            (S::Ready, C::Demoted) => S::Flushed,
            (S::Consumed, C::Needed) => S::Written,
            (state, change) => return Err(IllegalChange { state, change }),
        })
    }

    /// All bytes are here.
    pub fn complete(self) -> bool {
        matches!(self, State::Written | State::Flushed | State::Ready | State::Consumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::Init,
        State::Writing,
        State::Written,
        State::Flushed,
        State::Reading,
        State::Ready,
        State::Consumed,
    ];
    const CHANGES: [Change; 10] = [
        Change::WriteStarted,
        Change::WriteDone,
        Change::FlushDone,
        Change::ReadStarted,
        Change::ReadDone,
        Change::Wanted,
        Change::Promoted,
        Change::Delivered,
        Change::Demoted,
        Change::Needed,
    ];

    #[test]
    fn the_two_paths_of_the_paper() -> Result<(), IllegalChange> {
        let written =
            [Change::WriteStarted, Change::WriteDone, Change::FlushDone, Change::Wanted, Change::Delivered];
        let read = [Change::ReadStarted, Change::ReadDone, Change::Delivered];
        for path in [&written[..], &read[..]] {
            let mut state = State::Init;
            for &change in path {
                state = state.after(change)?;
            }
            assert_eq!(state, State::Consumed);
        }
        Ok(())
    }

    #[test]
    fn bytes_never_appear_or_vanish_by_a_change_that_moves_none() {
        let (mut legal, mut illegal) = (0, 0);
        for state in STATES {
            for change in CHANGES {
                match state.after(change) {
                    Ok(after) => {
                        legal += 1;
                        let arrives = matches!(change, Change::WriteDone | Change::ReadDone);
                        assert_eq!(!state.complete() && after.complete(), arrives, "{state:?} {change:?}");
                        assert!(after.complete() || !state.complete(), "{state:?} {change:?}");
                    }
                    Err(error) => {
                        illegal += 1;
                        assert_eq!(error, IllegalChange { state, change });
                    }
                }
            }
        }
        assert_eq!((legal, illegal), (19, 51));
    }
}
