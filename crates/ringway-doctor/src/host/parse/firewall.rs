//! Rules of the firewall, from `nft list ruleset`.

/// The UDP port of RoCE v2 (IBTA, annex A17).
const PORT: &str = "4791";

/// The rule that drops RoCE v2 on its way in, if there is one: an explicit one, or the policy of a chain that lets in only
/// what it names.
pub fn drops_roce(ruleset: &str) -> Option<String> {
    let mut input = None::<(String, bool)>;
    for line in ruleset.lines().map(str::trim) {
        if line.starts_with("chain ") || line == "}" {
            if let Some((policy, false)) = input.take() {
                return Some(policy);
            }
        } else if line.contains("hook input") && line.contains("policy drop") {
            input = Some((line.to_owned(), false));
        } else if line.contains("udp") && line.contains(PORT) {
            if line.contains("drop") || line.contains("reject") {
                return Some(line.to_owned());
            }
            if let (Some((_, allowed)), true) = (&mut input, line.contains("accept")) {
                *allowed = true;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_or_a_policy_drops() {
        let table = |policy: &str, rule: &str| {
            format!(
                "table inet filter {{\n\tchain input {{\n\t\ttype filter hook input priority filter; policy {policy};\n\
                 \t\t{rule}\n\t}}\n\tchain output {{\n\t\ttype filter hook output priority filter; policy accept;\n\t}}\n}}\n"
            )
        };
        assert!(drops_roce(&table("accept", "udp dport 4791 drop")).is_some());
        assert!(drops_roce(&table("drop", "tcp dport 22 accept")).is_some());
        assert_eq!(drops_roce(&table("drop", "udp dport 4791 accept")), None);
        assert_eq!(drops_roce(&table("accept", "udp dport 53 drop")), None);
        assert_eq!(drops_roce(""), None);
    }
}
