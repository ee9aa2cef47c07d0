//! The IP identification of a packet, read back from its invariant CRC.
//!
//! The CRC covers the identification, which a UDP socket doesn't tell. But a CRC is linear: a packet with identification
//! *i* has the CRC of one with 0, and on top of it the remainder of *i*(x) · x^s by the polynomial P, where *s* bits of
//! the packet and the CRC follow on the field. Two CRCs' difference divided by x^s is therefore *i* itself, of degree
//! less than 16, or else the packet is corrupt. As P is primitive, x has an inverse, and dividing is multiplying.
//!
//! What that costs in strength: of the CRC's 2^32 values 2^16 are accepted, so a packet of random bits passes with
//! 1 : 2^16 where it would with 1 : 2^32. So it is for peers only that count identifications.

/// The polynomial of the CRC (that of Ethernet, IEEE 802.3) without x^32. Coefficients are in reflected order: that of
/// x^0 is the top bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x^0.
const ONE: u32 = 1 << 31;

/// x^(-8 n) for n from 0 to 255, and for 256 times that.
const LOW: [u32; 256] = powers(inverse_of_byte());
const HIGH: [u32; 256] = powers(multiply(LOW[255], LOW[1]));

/// The identification that explains `difference`, that of a packet's CRC and of what it should be with identification 0.
/// None if there is none. `following` is how many bytes follow on the field, the CRC's included: at most 65,535.
pub(super) fn identification(difference: u32, following: u16) -> Option<u16> {
    let [high, low] = following.to_be_bytes();
    let by = multiply(HIGH[usize::from(high)], LOW[usize::from(low)]);
    let quotient = multiply(difference, by);
    let [field, rest] = [(quotient >> 16) as u16, quotient as u16];
    // The byte that goes first has the higher powers, which are the lower bits.
    (rest == 0).then_some(field.swap_bytes())
}

/// The product modulo P.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut power = 0;
    while power < 32 {
        // Without branches, which nobody could predict.
        let coefficient = (a >> (31 - power)) & 1;
        product ^= b & coefficient.wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        power += 1;
    }
    product
}

/// x^-8.
const fn inverse_of_byte() -> u32 {
    let mut value = ONE;
    let mut step = 0;
    while step < 8 {
        // Back from what multiplying by x does; only the reduction by P sets the top bit.
        value = if value & ONE == 0 {
            value << 1
        } else {
            (value ^ POLYNOMIAL) << 1 | 1
        };
        step += 1;
    }
    value
}

/// The powers of `base` from 0 to 255.
const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut exponent = 1;
    while exponent < 256 {
        table[exponent] = multiply(table[exponent - 1], base);
        exponent += 1;
    }
    table
}
