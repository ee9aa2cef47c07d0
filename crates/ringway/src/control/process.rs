//! What this host knows of the processes of its ranks.

use std::{fs, net::IpAddr, time::Duration};

use ringway_link::Candidate;
use ringway_plan::Rank;
use ringway_sys::interface_addresses;

use super::{Cause, shared::Shared};

/// The cause of a silence. On this host the kernel is asked what the process does; a process that has ended, and
/// whose connections a child of its own keeps open, has crashed. Where an address of this host's has gone, that is the
/// likeliest cause.
pub(super) fn silent(shared: &Shared, rank: Rank, silence: Duration) -> Cause {
    let (it, me) = (&shared.members[rank], &shared.members[shared.rank]);
    let mut known = String::new();
    if it.host_id == me.host_id {
        known += match state_of(it.pid) {
            None | Some('Z' | 'X') => return Cause::Crashed,
            Some('T' | 't') => "its process is stopped by a signal or a debugger",
            Some('D') => "its process is waiting for a disk or a device",
            Some('R') => "its process is running",
            Some(_) => "its process is asleep",
        };
    }
    if let Some(address) = lost_address(&me.address.addresses) {
        known = format!(
            "host {}, which finds so, has lost its address {address}: an interface of its is down or gone",
            me.host
        );
    }
    Cause::Silent { silence, known }
}

/// An address that this host had when the job began, and has no more.
fn lost_address(had: &[Candidate]) -> Option<IpAddr> {
    let has = interface_addresses().ok()?;
    let mut had = had.iter().map(|candidate| candidate.ip);
    had.find(|ip| has.iter().all(|there| there.address != *ip))
}

/// The kernel's letter for what a process does; none if there is no such process.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything, parentheses too.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Lets the calling thread have its turn before others where this process may: signs of life that come late are
/// false alarms. Without the right to (CAP_SYS_NICE or a limit) the thread stays as it is.
pub(super) fn raise_priority() {
    // On Linux, priority belongs to threads, and "this process" names the calling one.
    if let Err(error) = rustix::process::setpriority_process(None, -10) {
        tracing::debug!("the control thread keeps its priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_has_gone_is_found() {
        let candidate = |ip: [u8; 4]| Candidate {
            ip: ip.into(),
            prefix: 32,
            scope: 0,
        };
        let here = interface_addresses().unwrap();
        let mut had: Vec<Candidate> = here
            .iter()
            .map(|there| Candidate {
                ip: there.address,
                ..candidate([0; 4])
            })
            .collect();
        assert_eq!(lost_address(&had), None);
        // Of a block for documentation (RFC 5737).
        had.push(candidate([203, 0, 113, 9]));
        assert_eq!(lost_address(&had), Some([203, 0, 113, 9].into()));
    }

    #[test]
    fn the_kernel_knows_this_process_and_not_others() {
        assert!(matches!(state_of(std::process::id()), Some('R' | 'S')));
        assert_eq!(state_of(u32::MAX), None);
    }
}
