//! Numbers in variables, as the libraries that they are for read them.

/// The number in the variable. NCCL takes it by `strtoll` with base 0, so that `0x6a` and `0152` are 106 (`ncclLoadParam`);
/// others take decimals.
pub(crate) fn number(name: &str, value: &str) -> Option<u32> {
    let value = value.trim();
    if !name.starts_with("NCCL_") {
        return value.parse().ok();
    }
    let hexadecimal = ["0x", "0X"].iter().find_map(|it| value.strip_prefix(it));
    match (hexadecimal, value.strip_prefix('0')) {
        (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
        (None, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn nccl_has_bases() {
        for value in ["106", "0x6a", "0X6A", "0152", " 106 "] {
            assert_eq!(number("NCCL_IB_TC", value), Some(106), "{value}");
        }
        assert_eq!(number("NCCL_IB_TC", "0"), Some(0));
        for value in ["", "0x", "08", "6a", "-1"] {
            assert_eq!(number("NCCL_IB_TC", value), None, "{value}");
        }
        assert_eq!(number("UCX_IB_TRAFFIC_CLASS", "106"), Some(106));
        assert_eq!(number("UCX_IB_TRAFFIC_CLASS", "0x6a"), None);
    }
}
