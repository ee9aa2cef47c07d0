//! What the two sides tell each other over the control connection.

use anyhow::{Result, anyhow, bail};
use ringway_link::rdma::Address;
use serde::{Deserialize, Serialize};

use super::test::{Run, Test};

/// What one side tells the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Client: what is to be measured, and where its queue pairs are.
    Start { test: Test, client: Party },
    /// Server: where its queue pairs are. They are connected, or will be by rdma_cm, for which it listens at `service`.
    Accept { server: Party, service: Option<u16> },
    /// Client: it is ready for these messages. Its queue pairs are connected.
    Run(Run),
    /// Server: it is ready, too.
    Ready,
    /// Both: all of its own requests are done, and all that it expected has arrived.
    Finished(Finished),
    /// Both, after a run for checking: what is wrong with the data that came.
    Checked { fault: Option<String> },
    /// Both, while nothing else is to be said.
    Alive,
    /// Both: it can't go on.
    Failed { why: String },
    /// Client: that was all.
    End,
}

/// What a side's requests of a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Finished {
    /// From the first request to the last completion; 0 if it had no requests.
    pub(super) seconds: f64,
    /// Messages per second over the best tenth of the run.
    pub(super) peak: f64,
}

/// What one side has made for the other to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Party {
    pub(super) device: String,
    /// [`Address::encode`] of each queue pair, in hexadecimal.
    addresses: Vec<String>,
    /// The address and the key of its memory.
    pub(super) memory: (u64, u32),
}

impl Party {
    pub(super) fn new(device: &str, addresses: &[Address], memory: (u64, u32)) -> Self {
        let hex = |address: &Address| {
            let digits = address.encode().map(|byte| format!("{byte:02x}"));
            digits.concat()
        };
        Self {
            device: device.to_owned(),
            addresses: addresses.iter().map(hex).collect(),
            memory,
        }
    }

    /// The addresses of `expected` queue pairs.
    pub(super) fn addresses(&self, expected: u32) -> Result<Vec<Address>> {
        if self.addresses.len() != expected as usize {
            bail!(
                "it has {} queue pairs, expected {expected}",
                self.addresses.len()
            );
        }
        let parse = |hex: &String| {
            let digits = hex.as_bytes().chunks(2);
            let bytes: Option<Vec<u8>> = digits
                .map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok())
                .collect();
            let bytes = bytes.ok_or_else(|| anyhow!("`{hex}` is no address of a queue pair"))?;
            Ok(Address::parse(&bytes)?)
        };
        self.addresses.iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_is_told_and_understood() {
        let party = Party::new("software", &[], (1, 2));
        assert_eq!(party.addresses(0).unwrap(), []);
        assert!(party.addresses(1).is_err());
        let odd = Party {
            addresses: vec!["0".to_owned()],
            ..party
        };
        assert!(odd.addresses(1).is_err());
    }
}
