//! Whether the data that came is what was sent, byte by byte.

use super::{
    end::End,
    test::{Operation, Run},
};

/// Who a pattern is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client = 1,
    Server = 2,
}

impl Side {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Fills what goes out with this side's pattern, and what comes in with other bytes than the other side's.
pub(super) fn fill(end: &End, side: Side, run: Run) {
    for pair in 0..end.test().qps as usize {
        end.outgoing(pair).write(&pattern(side, pair, run.bytes));
        let mut wrong = pattern(side.other(), pair, run.bytes);
        wrong.iter_mut().for_each(|byte| *byte = !*byte);
        end.incoming(pair).write(&wrong);
    }
}

/// What is wrong with what has come: by this side's own requests if it has `asked`, by the other's if that has
/// `answered` with requests of its own.
pub(super) fn fault(
    end: &End,
    side: Side,
    run: Run,
    asked: bool,
    answered: bool,
) -> Option<String> {
    let test = end.test();
    (0..test.qps as usize).find_map(|pair| {
        let theirs = pattern(side.other(), pair, run.bytes);
        let found = match test.operation {
            Operation::Write | Operation::Send if answered => {
                differs(&theirs, &read(end.incoming(pair)))
            }
            Operation::Read if asked => differs(&theirs, &read(end.incoming(pair))),
            Operation::Atomic => {
                // The last request sees what all before it have added.
                let before = asked.then(|| {
                    let expected = number(&theirs).wrapping_add(run.iterations - 1);
                    differs(&expected.to_ne_bytes(), &read(end.incoming(pair)))
                });
                let after = answered.then(|| {
                    let own = pattern(side, pair, run.bytes);
                    let expected = number(&own).wrapping_add(run.iterations);
                    differs(&expected.to_ne_bytes(), &read(end.outgoing(pair)))
                });
                before.flatten().or_else(|| after.flatten())
            }
            _ => None,
        };
        found.map(|found| {
            format!(
                "wrong data after {} of {} bytes at queue pair {pair}: {found}",
                test.operation.name(),
                run.bytes
            )
        })
    })
}

/// Bytes that differ between sides, queue pairs, sizes, and places of any distance.
fn pattern(side: Side, pair: usize, bytes: u64) -> Vec<u8> {
    let seed = ((side as u64) << 56) ^ ((pair as u64) << 40) ^ bytes;
    // The multiplier is 2^64 over the golden ratio. What it spreads upwards is folded down and spread again, so that
    // each bit has a part in the upper half.
    let spread = |word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = |at: u64| {
        let once = spread(seed ^ at);
        spread(once ^ (once >> 32)).to_be_bytes()
    };
    (0..bytes.div_ceil(4))
        .flat_map(|at| {
            let [a, b, c, d, ..] = word(at);
            [a, b, c, d]
        })
        .take(bytes as usize)
        .collect()
}

fn read(memory: ringway_sys::Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}

/// The eight bytes of an atomic operation, as the device sees them.
fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_ne_bytes(word)
}

fn differs(expected: &[u8], found: &[u8]) -> Option<String> {
    let count = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    let at = expected.iter().zip(found).position(|(a, b)| a != b)?;
    Some(format!(
        "{count} of {} bytes, from byte {at} on, which is {:#04x}, expected {:#04x}",
        expected.len(),
        found[at],
        expected[at]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_and_counted() {
        let good = pattern(Side::Client, 0, 100);
        assert_eq!(differs(&good, &good), None);
        let mut bad = good.clone();
        bad[99] = !good[99];
        let text = differs(&good, &bad).unwrap();
        assert!(
            text.starts_with("1 of 100 bytes, from byte 99 on"),
            "{text}"
        );
    }

    #[test]
    fn patterns_differ_by_side_pair_and_place() {
        let one = pattern(Side::Client, 0, 4096);
        for other in [
            pattern(Side::Server, 0, 4096),
            pattern(Side::Client, 1, 4096),
        ] {
            let equal = one.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(equal < 64, "{equal} bytes of 4096 are the same");
        }
        // Packets that change places are seen.
        assert_ne!(one[..1024], one[1024..2048]);
    }
}
