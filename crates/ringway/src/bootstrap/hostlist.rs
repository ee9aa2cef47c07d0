//! Slurm's lists of hosts: `gpu[01-04,07]-ib,login1`.

/// Hosts that a list may have, at most: what has more is not a list of hosts but a mistake or an attack.
const MOST: usize = 1 << 16;

/// Bytes of a host's name, at most.
const LONGEST: usize = 255;

/// The hosts of a list, in its order. A name may have several brackets: `rack[1-2]node[1-8]`.
///
/// # Errors
/// What is wrong with the list.
pub fn expand_hostlist(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for entry in split(text)? {
        let mut names = vec![String::new()];
        let mut rest = entry;
        while let Some(open) = rest.find('[') {
            // `split` has seen that brackets are closed.
            let Some(close) = rest.find(']') else {
                return Err(unbalanced());
            };
            let parts = numbers(&rest[open + 1..close])?;
            if names.len() * parts.len() + hosts.len() > MOST {
                return Err(format!("it has more than {MOST} hosts"));
            }
            // Before it is multiplied: a long prefix times many numbers is more memory than there is.
            if open > LONGEST || names.iter().any(|name| name.len() > LONGEST) {
                return Err(too_long());
            }
            names = names
                .iter()
                .flat_map(|name| {
                    let prefix = &rest[..open];
                    parts
                        .iter()
                        .map(move |part| format!("{name}{prefix}{part}"))
                })
                .collect();
            rest = &rest[close + 1..];
        }
        if rest.len() > LONGEST {
            return Err(too_long());
        }
        names.iter_mut().for_each(|name| name.push_str(rest));
        if let Some(bad) = names.iter().find(|name| !is_host(name)) {
            return Err(format!("`{bad}` is no host name"));
        }
        hosts.append(&mut names);
        if hosts.len() > MOST {
            return Err(format!("it has more than {MOST} hosts"));
        }
    }
    Ok(hosts)
}

/// The parts between commas that are outside of brackets.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(unbalanced()),
            ',' if !inside => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(unbalanced());
    }
    parts.push(text[start..].trim());
    Ok(parts)
}

fn unbalanced() -> String {
    "its brackets do not match".to_owned()
}

fn too_long() -> String {
    format!("a name in it has more than {LONGEST} bytes")
}

/// `01-03,7` to `01`, `02`, `03`, `7`: with as many digits as the first of the range has.
fn numbers(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |digits: &str| {
            let only_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            match digits.parse::<u64>() {
                Ok(n) if only_digits && digits.len() <= 18 => Ok(n),
                _ => Err(format!("`{part}` is no number or range of numbers")),
            }
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || to - from >= MOST as u64 {
            return Err(format!("`{part}` is no range that fits"));
        }
        let width = first.len();
        all.extend((from..=to).map(|n| format!("{n:0width$}")));
        if all.len() > MOST {
            return Err(format!("it has more than {MOST} hosts"));
        }
    }
    Ok(all)
}

fn is_host(name: &str) -> bool {
    let of_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
    !name.is_empty() && name.len() <= LONGEST && name.bytes().all(of_host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_real_clusters() {
        for (text, hosts) in [
            ("login1", "login1"),
            (
                "gpu[01-04,07]-ib",
                "gpu01-ib gpu02-ib gpu03-ib gpu04-ib gpu07-ib",
            ),
            ("a,b[1-2],c", "a b1 b2 c"),
            (
                "rack[1-2]node[09-10]",
                "rack1node09 rack1node10 rack2node09 rack2node10",
            ),
            (
                "nid[000008-000011]",
                "nid000008 nid000009 nid000010 nid000011",
            ),
            ("n[9-11]", "n9 n10 n11"),
            ("compute-0-[3,5]", "compute-0-3 compute-0-5"),
            ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
        ] {
            assert_eq!(expand_hostlist(text).unwrap().join(" "), hosts, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            ",",
            "a,",
            "a[",
            "a]",
            "a[1",
            "a[[1]]",
            "a[]",
            "a[3-1]",
            "a[x]",
            "a[1-]",
            "a[1-99999999]",
            "a[1-300]b[1-300]",
            "a b",
            "a[+1]",
            "a[1-2-3]",
            "n[99999999999999999999]",
        ] {
            assert!(expand_hostlist(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_long_name_is_refused_before_it_is_multiplied() {
        let long = "a".repeat(1 << 20);
        for text in [format!("{long}[1-60000]"), format!("a[1-60000]{long}")] {
            assert!(expand_hostlist(&text).unwrap_err().contains("255"));
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-c0-9\\[\\],-]{0,24}") {
            if let Ok(hosts) = expand_hostlist(&text) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MOST);
            }
        }

        #[test]
        fn ranges_expand_to_all_between(from in 0_u64..500, more in 0_u64..200, width in 1_usize..5) {
            let hosts = expand_hostlist(&format!("n[{from:0width$}-{}]x", from + more)).unwrap();
            let wanted: Vec<_> = (from..=from + more).map(|n| format!("n{n:0width$}x")).collect();
            prop_assert_eq!(hosts, wanted);
        }
    }
}
