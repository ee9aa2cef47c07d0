//! Brings a segment's file descriptors from the rank that makes it to the other ranks of its host.
//!
//! Over an abstract unix socket, which has no file to clean up and is seen only in its own network namespace:
//! whoever reaches it is on the same host for Ringway's purposes. Both sides check the other's user, and the
//! server checks the job's secret number; a stranger is sent away and harms nothing.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use ringway_plan::Rank;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
    },
};

use super::{HostIdentity, HostSegment, ShmError};

/// Descriptors in one message; the kernel allows 253.
const BATCH: usize = 128;
/// How long one visitor may keep the others waiting.
const VISIT: Duration = Duration::from_secs(2);
/// How often either side asks whether the other has given up.
const LOOK: Duration = Duration::from_millis(100);
/// What a rank says: magic, job, its world rank.
const HELLO: usize = 8 + 16 + 8;
const HELLO_MAGIC: &[u8; 8] = b"rwjoin\0\x01";

/// Waits for the other ranks of a host to come for the segment.
#[derive(Debug)]
pub struct Offer {
    listener: OwnedFd,
}

fn system(what: &'static str, errno: Errno) -> ShmError {
    ShmError::System {
        what,
        source: errno.into(),
        remedy: "allow abstract unix sockets, or use RINGWAY_TRANSPORTS=tcp",
    }
}

/// Waits until the descriptor has something to read, or an error to show; false once the deadline passed.
fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

fn same_user(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_peercred(fd).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

impl Offer {
    /// Starts to listen. `name` is any text of at most 100 bytes that only this job uses.
    pub fn bind(name: &str) -> Result<Self, ShmError> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|e| system("naming a unix socket", e))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(|e| system("socket", e))?;
        rustix::net::bind(&listener, &address).map_err(|e| system("bind", e))?;
        rustix::net::listen(&listener, 1024).map_err(|e| system("listen", e))?;
        Ok(Self { listener })
    }

    /// Hands the segment to every other rank of the host, or names those that did not come by the deadline. `withdrawn`
    /// is asked at least every 100 ms whether one of those that are missing, which it gets, has given up, and why.
    pub fn serve(
        self,
        segment: &HostSegment,
        deadline: Instant,
        withdrawn: &mut dyn FnMut(&[Rank]) -> Option<String>,
    ) -> Result<(), ShmError> {
        let start = Instant::now();
        let identity = segment.identity();
        let mut missing: Vec<Rank> = identity.ranks.clone();
        missing.retain(|&rank| segment.local_of(rank) != Some(segment.local_rank()));
        while !missing.is_empty() {
            if !readable(self.listener.as_fd(), deadline.min(Instant::now() + LOOK)) {
                if let Some(reason) = withdrawn(&missing) {
                    return Err(ShmError::Withdrawn { reason });
                }
                if Instant::now() < deadline {
                    continue;
                }
                return Err(ShmError::Missing {
                    missing,
                    waited: start.elapsed(),
                    remedy: "look at the output of these ranks: they failed earlier, or do not run on this host",
                });
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(visitor) = rustix::net::accept_with(&self.listener, flags) else {
                continue;
            };
            let patience = deadline.min(Instant::now() + VISIT);
            match welcome(visitor.as_fd(), segment, patience) {
                Some(rank) => missing.retain(|&other| other != rank),
                None => {
                    tracing::warn!("refused a stranger that asked for this host's shared memory");
                }
            }
        }
        Ok(())
    }
}

/// What a rank of `job` says when it comes.
fn write_hello(job: [u8; 16], rank: Rank) -> Vec<u8> {
    [&HELLO_MAGIC[..], &job, &(rank as u64).to_le_bytes()].concat()
}

/// The rank that says so, if it is of `job`.
fn read_hello(bytes: &[u8], job: [u8; 16]) -> Option<Rank> {
    let rest = bytes.strip_prefix(HELLO_MAGIC)?.strip_prefix(&job)?;
    usize::try_from(u64::from_le_bytes(rest.try_into().ok()?)).ok()
}

/// Reads a hello as the rank that hands out the segment does.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some(rank) = read_hello(bytes, *b"sixteen bytes...") {
        assert_eq!(bytes[24..], (rank as u64).to_le_bytes());
    }
}

/// Serves one visitor; its rank, if it belongs to the job and has been served.
fn welcome(visitor: BorrowedFd<'_>, segment: &HostSegment, deadline: Instant) -> Option<Rank> {
    if !same_user(visitor) || !readable(visitor, deadline) {
        return None;
    }
    let mut hello = [0; HELLO + 1];
    let (length, _) = rustix::net::recv(visitor, &mut hello[..], RecvFlags::empty()).ok()?;
    let rank = read_hello(&hello[..length], segment.identity().job)?;
    segment.local_of(rank)?;
    let descriptors = segment.descriptors();
    let last = descriptors.len().div_ceil(BATCH) - 1;
    for (i, batch) in descriptors.chunks(BATCH).enumerate() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(batch)) {
            return None;
        }
        let more = [u8::from(i < last)];
        // The few messages fit an empty socket's buffer, so that a visitor that does not read blocks nobody.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(visitor, &[IoSlice::new(&more)], &mut control, flags).ok()?;
    }
    Some(rank)
}

/// Comes for the segment's descriptors, as world rank `rank`, to the rank that called [`Offer::bind`] with the
/// same `name`. That rank may start to listen later: tries until the deadline, or until `withdrawn`, which is asked
/// every 100 ms, says that it will not, and why.
pub fn fetch(
    name: &str,
    identity: &HostIdentity,
    rank: Rank,
    deadline: Instant,
    withdrawn: &mut dyn FnMut() -> Option<String>,
) -> Result<Vec<OwnedFd>, ShmError> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| system("naming a unix socket", e))?;
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut look = start + LOOK;
    loop {
        let detail = match visit(&address, identity, rank, deadline)? {
            Ok(descriptors) => return Ok(descriptors),
            Err(detail) => detail,
        };
        let now = Instant::now();
        if now >= look {
            if let Some(reason) = withdrawn() {
                return Err(ShmError::Withdrawn { reason });
            }
            look = now + LOOK;
        }
        if now + pause >= deadline {
            return Err(ShmError::NoOffer {
                waited: start.elapsed(),
                detail: detail.to_owned(),
                remedy: "look at the output of that rank, and start all ranks of a host in one network namespace and as one user",
            });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// One try; the inner error says why it is worth another.
fn visit(
    address: &SocketAddrUnix,
    identity: &HostIdentity,
    rank: Rank,
    deadline: Instant,
) -> Result<Result<Vec<OwnedFd>, &'static str>, ShmError> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| system("socket", e))?;
    if rustix::net::connect(&socket, address).is_err() {
        return Ok(Err("it does not listen"));
    }
    if !same_user(socket.as_fd()) {
        return Ok(Err("the listener belongs to another user"));
    }
    let hello = write_hello(identity.job, rank);
    if rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL).is_err() {
        return Ok(Err("it hung up"));
    }
    let mut descriptors = Vec::new();
    loop {
        if !readable(socket.as_fd(), deadline) {
            return Ok(Err("it did not answer"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut more = [0u8];
        let received = rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut more)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        );
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        match received {
            Ok(message) if message.bytes == 0 => return Ok(Err("it refused this rank")),
            Ok(message) if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) => {
                return Err(system("receiving file descriptors", Errno::MFILE));
            }
            Ok(_) if more == [0] => return Ok(Ok(descriptors)),
            Ok(_) => {}
            Err(_) => return Ok(Err("it hung up")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::SegmentSizes;

    fn identity(ranks: &[Rank]) -> HostIdentity {
        HostIdentity {
            job: [3; 16],
            world: 400,
            ranks: ranks.to_vec(),
        }
    }

    fn name(test: &str) -> String {
        format!("ringway-test-{test}-{}", std::process::id())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    const SMALL: SegmentSizes = SegmentSizes {
        control: 1,
        slots: 1,
        staging: 1,
        arena: 1,
    };

    #[test]
    fn every_rank_of_the_host_gets_the_segment() {
        // More descriptors than fit one message.
        let ranks: Vec<Rank> = (100..240).collect();
        let (name, identity) = (name("all"), identity(&ranks));
        thread::scope(|scope| {
            for local in [1, 139] {
                let (name, identity) = (&name, &identity);
                scope.spawn(move || {
                    let fds = fetch(name, identity, 100 + local, soon(), &mut || None).unwrap();
                    let segment = HostSegment::join(fds, identity.clone(), local).unwrap();
                    segment.control(local).write(&[local as u8]);
                });
            }
            let segment = HostSegment::create(identity.clone(), SMALL).unwrap();
            let offer = Offer::bind(&name).unwrap();
            let error = offer.serve(
                &segment,
                Instant::now() + Duration::from_millis(300),
                &mut |_| None,
            );
            let Err(ShmError::Missing { missing, .. }) = error else {
                panic!("{error:?}")
            };
            assert_eq!(missing.len(), 137);
            assert!(!missing.contains(&101) && !missing.contains(&239) && !missing.contains(&100));
        });
    }

    #[test]
    fn a_stranger_is_sent_away_and_the_rest_are_served() {
        let (name, identity) = (name("stranger"), identity(&[0, 1]));
        let segment = HostSegment::create(identity.clone(), SMALL).unwrap();
        let offer = Offer::bind(&name).unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| offer.serve(&segment, soon(), &mut |_| None));
            let stranger = HostIdentity {
                job: [4; 16],
                ..identity.clone()
            };
            // It asks again and again until then.
            let short = || Instant::now() + Duration::from_secs(1);
            let error = fetch(&name, &stranger, 1, short(), &mut || None).unwrap_err();
            assert!(error.to_string().contains("refused"), "{error}");
            assert!(fetch(&name, &identity, 7, short(), &mut || None).is_err());
            assert_eq!(
                fetch(&name, &identity, 1, soon(), &mut || None)
                    .unwrap()
                    .len(),
                5
            );
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn nobody_listens() {
        let deadline = Instant::now() + Duration::from_millis(30);
        let error = fetch(
            &name("nobody"),
            &identity(&[0, 1]),
            1,
            deadline,
            &mut || None,
        )
        .unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
    }
    #[test]
    fn nobody_waits_for_one_that_has_given_up() {
        let (name, identity) = (name("withdrawn"), identity(&[0, 1]));
        let segment = HostSegment::create(identity.clone(), SMALL).unwrap();
        let reason = || Some("no address space".to_owned());
        let offer = Offer::bind(&name).unwrap();
        let error = offer.serve(&segment, soon(), &mut |missing| {
            assert_eq!(missing, [1]);
            reason()
        });
        assert!(
            matches!(error, Err(ShmError::Withdrawn { .. })),
            "{error:?}"
        );
        // Nobody listens any more.
        let error = fetch(&name, &identity, 1, soon(), &mut || reason());
        assert!(
            matches!(error, Err(ShmError::Withdrawn { .. })),
            "{error:?}"
        );
    }
}
