//! The flags of NVIDIA's `mlnx_qos`, and what it prints.

use super::super::{
    grammar::numbers,
    model::{Nic, Trust},
    source::{At, Place},
};

/// Something that is wrong with a command: the problem and the remedy.
type Wrong = (String, String);

/// Takes over what the flags set; the result is the interface's name and what is wrong with them.
pub(super) fn interface(flags: &[String]) -> Option<&str> {
    let at = flags
        .iter()
        .position(|flag| flag == "-i" || flag == "--interface")?;
    flags.get(at + 1).map(String::as_str)
}

/// Takes over what the flags set; the result is what is wrong with them.
pub(super) fn apply(flags: &[String], nic: &mut Nic, place: Place) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut rest = flags.iter().map(String::as_str);
    while let Some(flag) = rest.next() {
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, value),
            None if matches!(flag, "-q" | "-P" | "-a") => (flag, ""),
            None => (flag, rest.next().unwrap_or("")),
        };
        let list = || eight(flag, value);
        let said = match flag {
            "-i" | "--interface" | "-d" | "--dcbx" | "-r" | "--ratelimit" | "--prio2buffer"
            | "--buffer_size" | "-q" | "-P" | "-a" => Ok(()),
            "--trust" => trust(value).map(|trust| nic.trust = Some(At::new(trust, place))),
            "--dscp2prio" => code_point(value, nic, place),
            "-f" | "--pfc" => list().and_then(|list| {
                if list.iter().any(|on| *on > 1) {
                    return Err((
                        format!("{flag} {value}: expected 0 or 1 for each priority"),
                        "write 1 for the lossless priority and 0 for the others".to_owned(),
                    ));
                }
                nic.pfc = Some(At::new(list.map(|on| on == 1), place));
                Ok(())
            }),
            "-p" | "--prio_tc" => list().and_then(|list| {
                let used: u8 = list.iter().fold(0, |used, class| used | 1 << (class & 7));
                nic.classes = Some(At::new(list, place));
                if used.count_ones() > 2 {
                    return Ok(());
                }
                Err((
                    format!(
                        "{flag} {value} puts all priorities into {} traffic classes",
                        used.count_ones()
                    ),
                    "-p maps priorities to traffic classes, PFC is -f: write -p 0,1,2,3,4,5,6,7"
                        .to_owned(),
                ))
            }),
            "-s" | "--tsa" => {
                let kinds: Vec<&str> = value.split(',').collect();
                let kinds: Result<[&str; 8], _> = kinds.try_into();
                kinds
                    .map(|kinds| {
                        nic.strict = Some(At::new(kinds.map(|kind| kind == "strict"), place))
                    })
                    .map_err(|_| shape(flag, value))
            }
            "-t" | "--tcbw" => list().map(|list| nic.bandwidth = Some(At::new(list, place))),
            "--cable_len" => value
                .parse()
                .map(|metres| nic.cable = Some(At::new(metres, place)))
                .map_err(|_| {
                    (
                        format!("{flag} {value}: expected metres"),
                        "write a number".to_owned(),
                    )
                }),
            _ => Err((
                format!("mlnx_qos has no flag {flag}"),
                "mlnx_qos --help lists them".to_owned(),
            )),
        };
        wrong.extend(said.err());
    }
    wrong
}

fn trust(value: &str) -> Result<Trust, Wrong> {
    match value {
        "dscp" => Ok(Trust::Dscp),
        "pcp" => Ok(Trust::Pcp),
        _ => Err((
            format!("--trust {value}: expected dscp or pcp"),
            "write --trust dscp".to_owned(),
        )),
    }
}

/// `set,26,3`, `del,26,3` or `flush`.
fn code_point(value: &str, nic: &mut Nic, place: Place) -> Result<(), Wrong> {
    let parts: Vec<&str> = value.split(',').collect();
    let pair = |dscp: &str, priority: &str| {
        let dscp = dscp.parse::<u8>().ok().filter(|dscp| *dscp < 64)?;
        let priority = priority
            .parse::<u8>()
            .ok()
            .filter(|priority| *priority < 8)?;
        Some((dscp, priority))
    };
    let wrong = || {
        (
            format!(
                "--dscp2prio {value}: expected set,DSCP,PRIORITY with a DSCP to 63 and a priority to 7"
            ),
            "write --dscp2prio set,26,3".to_owned(),
        )
    };
    match parts.as_slice() {
        ["flush"] => nic.dscp.fill(None),
        ["set", dscp, priority] => {
            let (dscp, priority) = pair(dscp, priority).ok_or_else(wrong)?;
            nic.dscp[usize::from(dscp)] = Some(At::new(priority, place));
        }
        ["del", dscp, priority] => {
            let (dscp, _) = pair(dscp, priority).ok_or_else(wrong)?;
            nic.dscp[usize::from(dscp)] = None;
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

fn eight(flag: &str, value: &str) -> Result<[u8; 8], Wrong> {
    let list: Option<[u8; 8]> = numbers(value).and_then(|list| list.try_into().ok());
    list.ok_or_else(|| shape(flag, value))
}

fn shape(flag: &str, value: &str) -> Wrong {
    (
        format!("{flag} {value}: expected eight values with commas between"),
        "write one for each of 0 to 7".to_owned(),
    )
}

/// Takes over what `mlnx_qos -i` printed, line by line; `at` gives the place of a line.
pub(super) fn printed(text: &str, nic: &mut Nic, at: impl Fn(u32) -> Place) {
    let mut class = None;
    let mut classes = [0; 8];
    let mut classes_at = None;
    for (line, number) in text.lines().zip(1..) {
        let place = at(number);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Priority", "trust", "state:", state] => {
                nic.trust = trust(state).ok().map(|trust| At::new(trust, place));
            }
            ["Cable", "len:", metres] => {
                nic.cable = metres.parse().ok().map(|metres| At::new(metres, place));
            }
            ["enabled", flags @ ..] => {
                let flags: Option<Vec<bool>> = flags
                    .iter()
                    .map(|flag| match *flag {
                        "0" => Some(false),
                        "1" => Some(true),
                        _ => None,
                    })
                    .collect();
                let flags: Option<[bool; 8]> = flags.and_then(|flags| flags.try_into().ok());
                nic.pfc = flags.map(|flags| At::new(flags, place));
            }
            [prio, dscp] if prio.starts_with("prio:") && dscp.starts_with("dscp:") => {
                let Ok(priority @ 0..8) = prio[5..].parse::<u8>() else {
                    continue;
                };
                for dscp in dscp[5..]
                    .split(',')
                    .filter_map(|dscp| dscp.parse::<u8>().ok())
                {
                    if let Some(entry) = nic.dscp.get_mut(usize::from(dscp)) {
                        *entry = Some(At::new(priority, place));
                    }
                }
            }
            ["tc:", number, ..] => class = number.parse::<u8>().ok().filter(|class| *class < 8),
            ["priority:", priority] => {
                if let (Some(class), Ok(priority @ 0..8)) = (class, priority.parse::<usize>()) {
                    classes[priority] = class;
                    classes_at.get_or_insert(place);
                }
            }
            _ => {}
        }
    }
    nic.classes = classes_at.map(|place| At::new(classes, place));
}
