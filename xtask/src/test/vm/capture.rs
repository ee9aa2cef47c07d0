//! What was captured in the machine, given to others to read: Wireshark, and the endpoint's own packets written anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    repo,
    test::{LIBTEST, count::Counts, stage::Runner},
};

/// The line after which the script prints the capture.
const MARK: &str = "\ncapture:\n";

/// The endpoint's addresses, and what it says of connection management: REQ, REP, RTU, DREQ and DREP.
const ENDPOINT: [&str; 2] = ["10.0.0.9", "fd00::9"];
const MESSAGES: [&str; 5] = ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"];

/// Guesses of Wireshark's at what the payload is, some of which are wrong.
const GUESSES: [&str; 3] = ["rpcordma", "iser", "smb_direct"];

/// What nobody should find: no RoCE, no sense, or something to remark. rxe sends IPv6 without UDP checksums.
const WRONG: &str = "not infiniband or _ws.malformed or (_ws.expert and not ipv6.src == fd00::1)";

/// A script's output for people, and the capture in it.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(MARK) {
        Some((said, capture)) => (said, Some(capture)),
        None => (text, None),
    }
}

/// Checks a capture that is compressed and in Base64.
pub(super) fn check(runner: &Runner, dir: &Path, capture: &str) -> Result<Counts> {
    let (text, file) = (dir.join("capture.txt"), dir.join("capture.pcap"));
    fs::write(&text, capture).context("cannot write target/vm/capture.txt")?;
    let mut decode = Command::new("sh");
    decode.args(["-ec", "base64 -d \"$1\" | gzip -d >\"$2\"", "decode"]);
    decode.arg(&text).arg(&file);
    runner.quiet(decode).context("the capture")?;
    let dissected = wireshark_understands(runner, &file)?;
    let mut again = repo::cargo([
        "test",
        "-p",
        "ringway-roce",
        "--test",
        "capture",
        "--",
        "--ignored",
    ]);
    again.env("RINGWAY_TEST_CAPTURE", &file);
    Ok(dissected + runner.count(again, &LIBTEST)?)
}

/// Wireshark finds nothing wrong, and the endpoint's messages of connection management are what they should be.
fn wireshark_understands(runner: &Runner, file: &Path) -> Result<Counts> {
    let tshark = |filter: &str| {
        let mut command = Command::new("tshark");
        // What it says of its being run by root is of no interest.
        command.args(["-Q", "-r"]).arg(file).args(["-Y", filter]);
        for guess in GUESSES {
            command.args(["--disable-protocol", guess]);
        }
        command
    };
    let wrong = runner.quiet(tshark(WRONG))?;
    if wrong.lines().any(is_of_a_packet) {
        bail!("tshark finds fault with packets:\n{wrong}");
    }
    let mut managed = tshark("infiniband.mad");
    for field in ["ip.src", "ipv6.src", "infiniband.mad.attributeid"] {
        managed.args(["-e", field]);
    }
    managed.args(["-T", "fields"]);
    let managed = runner.quiet(managed)?;
    let mut said: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in managed.lines() {
        // One of the two addresses is empty.
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [from, message] = words[..] {
            said.entry(from).or_default().insert(message);
        }
    }
    for endpoint in ENDPOINT {
        let said = said.get(endpoint);
        let is_said = |message: &&str| said.is_some_and(|said| said.contains(message));
        if let Some(missing) = MESSAGES.iter().find(|message| !is_said(message)) {
            bail!(
                "tshark sees no message {missing} of connection management from {endpoint}:\n{managed}"
            );
        }
    }
    Ok(Counts::one_passed())
}

/// Lines of packets begin with their number.
fn is_of_a_packet(line: &str) -> bool {
    let number = line.split_whitespace().next();
    number.is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_told_from_what_was_said() {
        assert_eq!(split("fine\ncapture:\nAB\n"), ("fine", Some("AB\n")));
        assert_eq!(split("no capture: yet"), ("no capture: yet", None));
    }

    #[test]
    fn packets_are_told_from_warnings() {
        assert!(is_of_a_packet("   12 0.5 10.0.0.1 -> 10.0.0.9 RRoCE"));
        assert!(!is_of_a_packet("Running as user \"root\""));
        assert!(!is_of_a_packet(""));
    }
}
