//! Reading and writing messages by hand: checked, little-endian, nothing allocated from a length that was not
//! checked.

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the message ends early")]
    Early,
    #[error("the message goes on after its end")]
    Late,
    #[error("{0}")]
    Wrong(&'static str),
}

/// Takes values off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::Early)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that counts or indexes things in memory.
    pub(crate) fn number(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u32()?).map_err(|_| Malformed::Wrong("a number beyond this machine's"))
    }

    /// Bytes with their length in front, at most `most`.
    pub(crate) fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let len = self.number()?;
        if len > most {
            return Err(Malformed::Wrong("a part is longer than it may be"));
        }
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Early)?;
        self.rest = rest;
        Ok(head)
    }

    /// Text of at most `most` bytes. Control characters come out as `?`: it goes to terminals and logs.
    pub(crate) fn text(&mut self, most: usize) -> Result<String, Malformed> {
        let bytes = self.bytes(most)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Wrong("text is no UTF-8"))?;
        Ok(text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect())
    }

    pub(crate) const fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Late)
        }
    }
}

/// Appends values to a message.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A number below 2^32, as all that are counted here are.
    pub(crate) fn number(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Text, cut at `most` bytes between characters.
    pub(crate) fn text(&mut self, text: &str, most: usize) {
        self.bytes(&text.as_bytes()[..text.floor_char_boundary(most)]);
    }
}

/// FNV-1a: a hash that is the same on every machine and in every version, which std's hashers are not.
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}
