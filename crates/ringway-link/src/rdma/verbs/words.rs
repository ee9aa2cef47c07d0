//! The same things in the words of `ringway-roce` and of verbs.

use ringway_verbs as verbs;

use crate::rdma::{Access, Done, Failure, Local, Mtu, Remote, SendRequest, Source, Status, Work};

pub(super) const fn mtu(mtu: verbs::Mtu) -> Mtu {
    match mtu {
        verbs::Mtu::B256 => Mtu::M256,
        verbs::Mtu::B512 => Mtu::M512,
        verbs::Mtu::B1024 => Mtu::M1024,
        verbs::Mtu::B2048 => Mtu::M2048,
        verbs::Mtu::B4096 => Mtu::M4096,
    }
}

pub(super) const fn verbs_mtu(mtu: Mtu) -> verbs::Mtu {
    match mtu {
        Mtu::M256 => verbs::Mtu::B256,
        Mtu::M512 => verbs::Mtu::B512,
        Mtu::M1024 => verbs::Mtu::B1024,
        Mtu::M2048 => verbs::Mtu::B2048,
        Mtu::M4096 => verbs::Mtu::B4096,
    }
}

pub(super) fn access(access: Access) -> verbs::Access {
    let mut rights = verbs::Access::LOCAL_READ;
    for (ours, theirs) in [
        (Access::LOCAL_WRITE, verbs::Access::LOCAL_WRITE),
        (Access::REMOTE_READ, verbs::Access::REMOTE_READ),
        (Access::REMOTE_WRITE, verbs::Access::REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, verbs::Access::REMOTE_ATOMIC),
    ] {
        if access.contains(ours) {
            rights = rights | theirs;
        }
    }
    rights
}

pub(super) const fn local(local: Local) -> verbs::Local<'static> {
    verbs::Local::of_key(local.address, local.length, local.key.0)
}

const fn place(remote: Remote) -> verbs::RemotePlace {
    verbs::RemotePlace {
        address: remote.address,
        key: remote.key.0,
    }
}

const fn source(source: Source<'_>) -> verbs::Source<'_> {
    match source {
        Source::Memory(memory) => verbs::Source::Region(local(memory)),
        Source::Inline(bytes) => verbs::Source::Inline(bytes),
    }
}

pub(super) const fn request<'a>(request: &SendRequest<'a>) -> verbs::SendRequest<'a> {
    let operation = match request.work {
        Work::Send {
            source: from,
            immediate,
        } => verbs::Operation::Send {
            source: source(from),
            immediate,
        },
        Work::Write {
            source: from,
            remote,
            immediate,
        } => verbs::Operation::Write {
            source: source(from),
            to: place(remote),
            immediate,
        },
        Work::Read { into, remote } => verbs::Operation::Read {
            into: local(into),
            from: place(remote),
        },
        Work::FetchAdd { into, remote, add } => verbs::Operation::FetchAdd {
            into: local(into),
            at: place(remote),
            add,
        },
        Work::CompareSwap {
            into,
            remote,
            compare,
            swap,
        } => verbs::Operation::CompareSwap {
            into: local(into),
            at: place(remote),
            compare,
            swap,
        },
    };
    verbs::SendRequest {
        id: request.id,
        operation,
        signaled: request.signaled,
        solicited: request.solicited,
    }
}

/// What was done, or why not. A success of a kind that is never posted counts as a failure of the device.
pub(super) fn result(ended: &verbs::Completion) -> Result<Done, Failure> {
    let failure = |status: verbs::Status| Failure {
        status: Status::from_code(status.0),
        vendor: ended.vendor_error,
    };
    if !ended.status.is_success() {
        return Err(failure(ended.status));
    }
    let length = ended.len;
    match (ended.ended, ended.immediate) {
        (verbs::Ended::Send, _) => Ok(Done::Send),
        (verbs::Ended::Write, _) => Ok(Done::Write),
        (verbs::Ended::Read, _) => Ok(Done::Read),
        (verbs::Ended::FetchAdd, _) => Ok(Done::FetchAdd),
        (verbs::Ended::CompareSwap, _) => Ok(Done::CompareSwap),
        (verbs::Ended::Receive, immediate) => Ok(Done::Receive { length, immediate }),
        (verbs::Ended::ReceiveWrite, Some(immediate)) => {
            Ok(Done::ReceiveWrite { length, immediate })
        }
        _ => Err(failure(verbs::Status::GENERAL)),
    }
}
