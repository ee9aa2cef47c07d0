//! Operations in the words of error texts.

use std::{fmt, time::Duration};

use ringway_plan::Rank;

use crate::{
    Descriptor, Form,
    settings::{Settings, Source},
};

/// How long an operation may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) by: Limiter,
}

/// What says how long that is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limiter {
    /// The setting `timeout`.
    Setting,
    /// The call itself.
    Call,
    /// The setting, or the call if it says longer: ranks of a job that adapts to its links meet before the call's operation.
    Meeting,
}

impl Limit {
    /// What sets it, for users to change: after "raise".
    pub(super) fn set_by(&self, settings: &Settings) -> String {
        let setting = || match settings.source("timeout") {
            Source::Default => "RINGWAY_TIMEOUT".to_owned(),
            source @ Source::File { .. } => format!("`timeout` in {source}"),
            source => source.to_string(),
        };
        match self.by {
            Limiter::Setting => setting(),
            Limiter::Call => "the timeout that the call was given (in PyTorch `timeout=` of init_process_group or new_group)"
                .to_owned(),
            Limiter::Meeting => format!(
                "{}. Ranks meet here to compare what operations take or to measure links: a program in which one comes only \
                 after another has gone on needs RINGWAY_ADAPT_AFTER=off",
                setting()
            ),
        }
    }
}

/// An operation that this rank is in, as its user knows it.
#[derive(Clone, Copy)]
pub(crate) struct Label<'a> {
    pub(crate) descriptor: &'a Descriptor,
    /// Its group's number.
    pub(crate) group: u64,
    /// The world's rank of each member of the group.
    pub(crate) members: &'a [Rank],
    /// This rank's number in the world.
    pub(crate) me: Rank,
    /// Which call of the group it is, from 0; none where that is not known.
    pub(crate) call: Option<u64>,
}

impl Label<'_> {
    /// The same operation as another member sees it.
    pub(super) fn of(&self, peer: Rank) -> Self {
        Self { me: peer, ..*self }
    }
}

impl fmt::Display for Label<'_> {
    /// `all_reduce of 4 f32 elements, sum, by ring (operation 17)`, `recv of 4 f32 elements from rank 2 (its message 0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Form::Pair, &[from, to]) = (self.descriptor.form, self.members) {
            let Descriptor {
                elements, dtype, ..
            } = self.descriptor;
            if self.me == from {
                write!(f, "send of {elements} {dtype} elements to rank {to}")?;
            } else {
                write!(f, "recv of {elements} {dtype} elements from rank {from}")?;
            }
            return match self.call {
                Some(call) => write!(f, " (message {call} under its tag)"),
                None => Ok(()),
            };
        }
        write!(f, "{}", self.descriptor)?;
        match (self.call, self.group) {
            (None, _) => Ok(()),
            (Some(call), 0) => write!(f, " (operation {call})"),
            (Some(call), group) => write!(f, " (operation {call} of group {group:x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ringway_plan::{Algorithm, Collective, DataType};

    use super::*;

    #[test]
    fn each_end_of_a_message_has_its_own_name() {
        let descriptor = Descriptor {
            collective: Collective::Broadcast { root: 0 },
            dtype: DataType::F32,
            op: None,
            elements: 4,
            algorithm: Algorithm::Direct,
            form: Form::Pair,
            plan: 0,
            wire: None,
        };
        let label = Label {
            descriptor: &descriptor,
            group: 1 << 63,
            members: &[5, 3],
            me: 3,
            call: Some(2),
        };
        assert_eq!(
            label.to_string(),
            "recv of 4 f32 elements from rank 5 (message 2 under its tag)"
        );
        let theirs = Label {
            call: None,
            ..label.of(5)
        };
        assert_eq!(theirs.to_string(), "send of 4 f32 elements to rank 3");
    }

    #[test]
    fn whoever_set_a_limit_is_named() {
        let time = Duration::from_secs(1);
        let mut settings = Settings::default();
        let set_by = |settings: &Settings, by| Limit { time, by }.set_by(settings);
        assert_eq!(set_by(&settings, Limiter::Setting), "RINGWAY_TIMEOUT");
        assert!(set_by(&settings, Limiter::Call).contains("the call was given"));
        settings
            .apply_yaml("communication:\n  timeout: 9s", Path::new("ringway.yaml"))
            .unwrap();
        let set = "`timeout` in ringway.yaml:2";
        assert_eq!(set_by(&settings, Limiter::Setting), set);
        let met = set_by(&settings, Limiter::Meeting);
        assert!(
            met.starts_with(set) && met.contains("RINGWAY_ADAPT_AFTER=off"),
            "{met}"
        );
    }
}
