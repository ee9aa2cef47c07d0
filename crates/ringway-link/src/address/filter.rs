//! Which interfaces may be used.

use std::{net::IpAddr, str::FromStr};

use ringway_sys::InterfaceAddress;

use super::same_subnet;

/// Which interfaces and addresses may be used: a list such as `eth*,10.0.0.0/8,^docker0`, each item the name of an
/// interface (`*` at its end for any ending) or a subnet; with `^` in front it is excluded. With no item that
/// includes, all are included that no item excludes. The default includes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    include: Vec<Rule>,
    exclude: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Name(String),
    NameStart(String),
    Subnet(IpAddr, u8),
}

/// A filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{item}\" is no interface and no subnet: {problem}; write for example \"eth*,10.0.0.0/8,^docker0\""
)]
pub struct BadFilter {
    /// The item that is wrong.
    pub item: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl InterfaceFilter {
    /// Whether the address may be used.
    pub fn allows(&self, address: &InterfaceAddress) -> bool {
        let matches = |rule: &Rule| rule.matches(address);
        (self.include.is_empty() || self.include.iter().any(matches))
            && !self.exclude.iter().any(matches)
    }
}

impl FromStr for InterfaceFilter {
    type Err = BadFilter;

    fn from_str(list: &str) -> Result<Self, BadFilter> {
        let mut filter = Self::default();
        for item in list
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            match item.strip_prefix('^') {
                Some(rest) => filter.exclude.push(Rule::parse(rest)?),
                None => filter.include.push(Rule::parse(item)?),
            }
        }
        Ok(filter)
    }
}

impl Rule {
    fn parse(item: &str) -> Result<Self, BadFilter> {
        let bad = |problem| BadFilter {
            item: item.into(),
            problem,
        };
        if let Some((ip, prefix)) = item.split_once('/') {
            let ip: IpAddr = ip
                .parse()
                .map_err(|_| bad("no IP address before the slash"))?;
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            return match prefix.parse() {
                Ok(prefix) if prefix <= bits => Ok(Self::Subnet(ip, prefix)),
                _ => Err(bad(
                    "no number of bits after the slash that the address has",
                )),
            };
        }
        if let Ok(ip) = item.parse::<IpAddr>() {
            return Ok(Self::Subnet(ip, if ip.is_ipv4() { 32 } else { 128 }));
        }
        let (name, open) = item
            .strip_suffix('*')
            .map_or((item, false), |start| (start, true));
        if name.contains(['*', '^', ' ']) {
            return Err(bad(
                "a name has no \"*\" but at its end, no \"^\" but in front, no blank",
            ));
        }
        match (name.is_empty(), open) {
            (true, false) => Err(bad("it is empty")),
            (_, true) => Ok(Self::NameStart(name.into())),
            (false, false) => Ok(Self::Name(name.into())),
        }
    }

    fn matches(&self, address: &InterfaceAddress) -> bool {
        match self {
            Self::Name(name) => address.name == *name,
            Self::NameStart(start) => address.name.starts_with(start),
            Self::Subnet(ip, prefix) => same_subnet(*ip, address.address, *prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(filter: &str, name: &str, ip: &str) -> bool {
        let address = InterfaceAddress {
            name: name.into(),
            index: 1,
            address: ip.parse().unwrap(),
            prefix: 24,
            loopback: false,
        };
        filter.parse::<InterfaceFilter>().unwrap().allows(&address)
    }

    #[test]
    fn includes_and_excludes() {
        assert!(allows("", "eth0", "10.0.0.1"));
        assert!(allows("eth0", "eth0", "10.0.0.1"));
        assert!(!allows("eth0", "eth01", "10.0.0.1"));
        assert!(allows("eth*, ib0", "eth01", "10.0.0.1"));
        assert!(!allows("^docker0", "docker0", "172.17.0.1"));
        assert!(allows("^docker0", "eth0", "10.0.0.1"));
        assert!(!allows("eth*,^eth1", "eth1", "10.0.0.1"));
        assert!(allows("10.0.0.0/8", "any", "10.9.9.9"));
        assert!(!allows("10.0.0.0/8", "any", "11.9.9.9"));
        assert!(allows("fd00::/8,^10.0.0.1", "any", "fd12::1"));
        assert!(!allows("^10.0.0.1", "any", "10.0.0.1"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for bad in [
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "e*h",
            "^",
            "eth 0",
            "^^a",
            "1.1.1.1/x",
        ] {
            let error = bad.parse::<InterfaceFilter>().unwrap_err();
            assert!(error.to_string().contains("write for example"), "{error}");
        }
    }
}
