//! How requests end.

use std::fmt;

use crate::ffi;

/// How a request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// It was carried out.
    pub const SUCCESS: Self = Self(ffi::IBV_WC_SUCCESS);
    /// Refused here: a length does not fit.
    pub const LOCAL_LENGTH: Self = Self(1);
    /// Refused here: the memory is not that of the key.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// Not begun, because an earlier request of the queue pair had failed.
    pub const FLUSHED: Self = Self(5);
    /// The peer refused the key, address or right.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer failed.
    pub const REMOTE_OPERATION: Self = Self(11);
    /// The peer refused the request, for instance as longer than its receive.
    pub const REMOTE_INVALID: Self = Self(9);
    /// No answer after all retries.
    pub const RETRIES_EXCEEDED: Self = Self(12);
    /// The peer had no receive posted through all retries.
    pub const RECEIVER_NOT_READY: Self = Self(13);

    /// None of the others.
    pub const GENERAL: Self = Self(21);

    /// Whether it was carried out.
    pub const fn is_success(self) -> bool {
        self.0 == ffi::IBV_WC_SUCCESS
    }

    /// What it means, and for failures what to look at.
    pub const fn meaning(self) -> &'static str {
        const MEANINGS: [&str; 24] = [
            "success",
            "local length error: a message and the place for it have different lengths",
            "local queue pair operation error: the request does not fit the queue pair's kind or limits",
            "local EE context operation error",
            "local protection error: memory or key of a request is not a region's",
            "flushed: an earlier request of this queue pair failed; that one says why",
            "memory window bind error",
            "bad response: the peer answered with what was not asked for",
            "local access error: the region does not allow this",
            "remote invalid request: the peer refused it, for instance as longer than its receive",
            "remote access error: the peer's region does not have this key, address or right",
            "remote operation error: the peer's device or queue pair failed",
            "no answer after all retries: the peer has died, or packets do not reach it (wrong GID, MTU above the path's, \
             a firewall on UDP port 4791, a switch that drops)",
            "receiver not ready after all retries: the peer posts receives too slowly",
            "local RDD violation",
            "remote invalid RD request",
            "aborted by the peer",
            "invalid EE context number",
            "invalid EE context state",
            "fatal error of the device",
            "response time-out",
            "general error",
            "tag matching error",
            "tag matching rendezvous incomplete",
        ];
        if (self.0 as usize) < MEANINGS.len() {
            MEANINGS[self.0 as usize]
        } else {
            "a status that this program does not know"
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.meaning(), self.0)
    }
}
