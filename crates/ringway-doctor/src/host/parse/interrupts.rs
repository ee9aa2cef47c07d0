//! /proc/interrupts.

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The number, as in /proc/irq.
    pub number: u32,
    /// What it is for: `mlx5_comp3@pci:0000:17:00.0`.
    pub name: String,
    /// How often each CPU has served it.
    pub counts: Vec<u64>,
}

/// All that have a number; those of the processors themselves have none.
pub fn interrupts(text: &str) -> Vec<Interrupt> {
    let mut lines = text.lines();
    let cpus = lines
        .next()
        .map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let words: Vec<&str> = rest.split_whitespace().collect();
            let counts: Vec<u64> = words
                .iter()
                .take(cpus)
                .map_while(|word| word.parse().ok())
                .collect();
            Some(Interrupt {
                number: number.trim().parse().ok()?,
                name: (*words.last()?).to_owned(),
                counts,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_lines_with_their_counts() {
        let text = "           CPU0       CPU1\n  45:         10          2  IR-PCI-MSI 12058624-edge      \
                    mlx5_comp0@pci:0000:17:00.0\n NMI:          1          1   Non-maskable interrupts\n";
        let expected = Interrupt {
            number: 45,
            name: "mlx5_comp0@pci:0000:17:00.0".to_owned(),
            counts: vec![10, 2],
        };
        assert_eq!(interrupts(text), [expected]);
        assert!(interrupts("").is_empty());
    }
}
