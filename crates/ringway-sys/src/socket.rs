//! Reading and writing sockets straight from and into [`Memory`], and what the kernel knows of a connection.
//!
//! The standard library moves bytes between sockets and slices. Memory of a collective is no slice (peers may
//! share it), so the calls that gather and scatter it live here.

use std::{
    io,
    marker::PhantomData,
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use crate::Memory;

/// What a read or write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes were moved, not 0.
    Bytes(usize),
    /// None could be moved without blocking.
    Blocked,
    /// The other side has closed: there is no more to read.
    End,
}

/// The most parts of one gather or scatter.
pub const PARTS: usize = 16;

/// Parts of memory that one call sends, in order.
pub struct Gather<'a> {
    parts: Parts,
    bytes: PhantomData<&'a [u8]>,
}

impl Default for Gather<'_> {
    fn default() -> Self {
        Self {
            parts: Parts::EMPTY,
            bytes: PhantomData,
        }
    }
}

impl<'a> Gather<'a> {
    /// Adds a slice.
    ///
    /// # Panics
    /// If there are [`PARTS`] already.
    #[inline]
    pub fn bytes(&mut self, part: &'a [u8]) {
        self.parts.push(part.as_ptr().cast_mut(), part.len());
    }

    /// Adds a range of memory.
    ///
    /// # Panics
    /// If there are [`PARTS`] already.
    #[inline]
    pub fn memory(&mut self, part: Memory) {
        self.parts.push(part.as_ptr(), part.len());
    }

    /// Whether no more parts fit.
    pub const fn is_full(&self) -> bool {
        self.parts.count == PARTS
    }

    /// The bytes of all parts.
    pub fn len(&self) -> usize {
        self.parts.total()
    }

    /// Whether the parts have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what fits in the socket's buffer now; never blocks, never raises SIGPIPE.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn send(&self, socket: BorrowedFd<'_>) -> io::Result<Moved> {
        let message = self.parts.message();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header points to `count` parts; slices are borrowed for 'a, memory is valid by the contract
        // of `Memory::new`, and the kernel only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        moved(sent, Moved::Blocked)
    }
}

/// Parts of memory that one call fills, in order.
pub struct Scatter<'a> {
    parts: Parts,
    bytes: PhantomData<&'a mut [u8]>,
}

impl Default for Scatter<'_> {
    fn default() -> Self {
        Self {
            parts: Parts::EMPTY,
            bytes: PhantomData,
        }
    }
}

impl<'a> Scatter<'a> {
    /// Adds a slice.
    ///
    /// # Panics
    /// If there are [`PARTS`] already.
    #[inline]
    pub fn bytes(&mut self, part: &'a mut [u8]) {
        self.parts.push(part.as_mut_ptr(), part.len());
    }

    /// Adds a range of memory.
    ///
    /// # Panics
    /// If there are [`PARTS`] already.
    #[inline]
    pub fn memory(&mut self, part: Memory) {
        self.parts.push(part.as_ptr(), part.len());
    }

    /// Fills the parts with what has arrived; never blocks.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn recv(&mut self, socket: BorrowedFd<'_>) -> io::Result<Moved> {
        let mut message = self.parts.message();
        // SAFETY: the header points to `count` parts; slices are borrowed mutably for 'a, and memory is valid for
        // writes by the contract of `Memory::new`.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        moved(got, Moved::End)
    }
}

struct Parts {
    list: [libc::iovec; PARTS],
    count: usize,
}

impl Parts {
    const EMPTY: Self = Self {
        list: [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PARTS],
        count: 0,
    };

    #[inline]
    fn push(&mut self, base: *mut u8, len: usize) {
        assert!(self.count < PARTS, "more than {PARTS} parts");
        if len > 0 {
            self.list[self.count] = libc::iovec {
                iov_base: base.cast(),
                iov_len: len,
            };
            self.count += 1;
        }
    }

    fn total(&self) -> usize {
        self.list[..self.count]
            .iter()
            .map(|part| part.iov_len)
            .sum()
    }

    fn message(&self) -> libc::msghdr {
        // SAFETY: a message header of zeros is valid: no name, no parts, no control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = self.list.as_ptr().cast_mut();
        message.msg_iovlen = self.count;
        message
    }
}

/// Sends a slice: what fits in the socket's buffer now. The cheapest call for a few bytes.
///
/// # Errors
/// If the connection is broken.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Moved> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the slice is valid for reads of its length.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    moved(sent, Moved::Blocked)
}

/// Fills a slice with what has arrived. The cheapest call for a few bytes.
///
/// # Errors
/// If the connection is broken.
#[inline]
pub fn recv(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Moved> {
    // SAFETY: the slice is valid for writes of its length.
    let got = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            into.as_mut_ptr().cast(),
            into.len(),
            libc::MSG_DONTWAIT,
        )
    };
    moved(got, Moved::End)
}

/// A system call's result; `zero` is what a result of 0 means.
#[inline]
fn moved(result: isize, zero: Moved) -> io::Result<Moved> {
    match usize::try_from(result) {
        Ok(0) => Ok(zero),
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Moved::Blocked),
                _ => Err(error),
            }
        }
    }
}

/// The bytes of a TCP socket that the other host has not acknowledged yet, those not yet sent included.
///
/// # Errors
/// If it is no TCP socket.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ on sockets) writes one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// How the other host answers, as the kernel's TCP sees it.
#[derive(Clone, Copy, Debug)]
pub struct PathState {
    /// Segments in flight that are not acknowledged.
    pub in_flight: u32,
    /// Retransmissions in a row of the oldest of them, without an answer.
    pub retransmits: u8,
    /// Probes of a full receiver in a row, without an answer.
    pub probes: u8,
    /// Since the last acknowledgement of any kind.
    pub since_answer: Duration,
}

/// Asks the kernel about a TCP connection.
///
/// # Errors
/// If it is no TCP socket.
pub fn path_state(socket: impl AsFd) -> io::Result<PathState> {
    // SAFETY: a `tcp_info` of zeros is valid: it has only integers.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes of `info`, and how many into `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PathState {
        in_flight: info.tcpi_unacked,
        retransmits: info.tcpi_retransmits,
        probes: info.tcpi_probes,
        since_answer: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        (a, b)
    }

    fn memory(bytes: &mut [u8]) -> Memory {
        // SAFETY: the tests keep the bytes alive and look at them only through the handle until it is dead.
        unsafe { Memory::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn gathers_and_scatters_in_order() {
        let (a, b) = pair();
        let mut middle = *b"middle";
        let mut gather = Gather::default();
        gather.bytes(b"head ");
        gather.memory(memory(&mut middle));
        gather.bytes(b"");
        gather.bytes(b" tail");
        assert_eq!(gather.len(), 16);
        assert_eq!(gather.send(a.as_fd()).unwrap(), Moved::Bytes(16));
        let (mut first, mut rest) = ([0_u8; 7], [0_u8; 20]);
        let mut scatter = Scatter::default();
        scatter.memory(memory(&mut first));
        scatter.bytes(&mut rest);
        assert_eq!(scatter.recv(b.as_fd()).unwrap(), Moved::Bytes(16));
        assert_eq!((&first, &rest[..9]), (b"head mi", &b"ddle tail"[..]));
    }

    #[test]
    fn nothing_to_read_blocks_a_full_buffer_blocks_and_a_close_ends() {
        let (a, b) = pair();
        assert_eq!(recv(b.as_fd(), &mut [0; 8]).unwrap(), Moved::Blocked);
        let block = vec![0; 1 << 20];
        let mut sent = 0;
        while let Moved::Bytes(n) = send(a.as_fd(), &block).unwrap() {
            sent += n;
        }
        assert!(sent > 0);
        assert!(unacknowledged(a.as_fd()).unwrap() <= sent);
        let mut got = 0;
        let mut into = vec![0; 1 << 20];
        while got < sent {
            if let Moved::Bytes(n) = recv(b.as_fd(), &mut into).unwrap() {
                got += n;
            }
        }
        drop(a);
        assert_eq!(recv(b.as_fd(), &mut into).unwrap(), Moved::End);
    }

    #[test]
    fn the_path_of_a_live_connection_has_no_retransmissions() {
        let (a, _b) = pair();
        let state = path_state(&a).unwrap();
        assert_eq!(
            (state.in_flight, state.retransmits, state.probes),
            (0, 0, 0)
        );
        assert!(path_state(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
