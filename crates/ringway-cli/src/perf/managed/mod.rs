//! Queue pairs connected by rdma_cm: the client asks for each of them, by its index as private data.

mod nic;
mod software;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use ringway_link::rdma::{ConnectionId, Device, QueuePair};

use self::nic::Nic;
use super::{
    control::Control,
    device::Opened,
    end::{End, WHILE_SERVING},
    message::Party,
};

/// The port that a server listens at, which has nothing to do with TCP's.
const SERVICE: u16 = 18515;

/// How long all connections may take to come about. A kernel asks for more than a minute where nobody answers, and one that was there
/// may be gone before the last is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A side's conversations.
#[derive(Default)]
pub(super) struct Conversations {
    /// Those of the device in software that have come to a connection.
    software: Vec<ConnectionId>,
    /// Those through librdmacm.
    nic: Option<Nic>,
}

impl Conversations {
    fn established(&self) -> usize {
        self.software.len() + self.nic.as_ref().map_or(0, Nic::established)
    }
}

impl End {
    /// Lets the client connect. Returns the port of rdma_cm's that it has to ask for.
    pub(super) fn listen(&mut self) -> Result<u16> {
        let own = self.device.address(self.pairs[0])?;
        match &mut self.device {
            Opened::Software(device) => device.listen(SERVICE)?,
            Opened::Verbs(device) => {
                let mut nic = Nic::new(device, own)?;
                nic.listen(SERVICE)?;
                self.conversations.nic = Some(nic);
            }
        }
        Ok(SERVICE)
    }

    /// Connects to a server that listens. Returns the MTU in bytes.
    pub(super) fn connect_managed(
        &mut self,
        control: &mut Control,
        server: &Party,
        service: u16,
    ) -> Result<u32> {
        self.reach_memory_of(server);
        let mut mtu = self.test.mtu;
        for (index, peer) in server.addresses(self.test.qps)?.iter().enumerate() {
            let pair = self.pairs[index];
            let own = self.device.address(pair)?;
            mtu = own.agree(peer)?.mtu.bytes();
            let to = SocketAddr::new(peer.ip, service);
            let said = (index as u32).to_le_bytes();
            match &mut self.device {
                Opened::Software(device) => drop(device.connect_to(pair, to, &said)?),
                Opened::Verbs(device) => {
                    let least = device_mtu(device.as_ref());
                    if self.test.mtu < least {
                        bail!(
                            "--mtu {} with --cm, where librdmacm takes the port's own, {least}: leave --mtu out, or --cm",
                            self.test.mtu
                        );
                    }
                    let nic = match &mut self.conversations.nic {
                        Some(nic) => nic,
                        none => none.insert(Nic::new(device, own)?),
                    };
                    nic.ask(to, index)?;
                }
            }
        }
        let begun = Instant::now();
        while self.conversations.established() < self.pairs.len() {
            let now = self.poll(control, WHILE_SERVING)?;
            if now.saturating_duration_since(begun) > PATIENCE {
                bail!(
                    "{} of {} connections to {} by rdma_cm stand after {} s: do UDP packets to port 4791 get through?",
                    self.conversations.established(),
                    self.pairs.len(),
                    control.peer(),
                    PATIENCE.as_secs()
                );
            }
        }
        Ok(mtu)
    }

    /// Takes what has happened to connections, and accepts what the client asks for.
    pub(super) fn manage(&mut self, control: &Control) -> Result<()> {
        let (pairs, conversations) = (&self.pairs, &mut self.conversations);
        match (&mut self.device, &mut conversations.nic) {
            (Opened::Software(device), _) => {
                software::step(device, pairs, &mut conversations.software, control)
            }
            (Opened::Verbs(device), Some(nic)) => nic.step(device, pairs, control),
            (Opened::Verbs(_), None) => Ok(()),
        }
    }

    /// Ends the connections by rdma_cm; the other side will know, or doesn't care any more.
    pub(super) fn disconnect(&mut self) -> Result<()> {
        if let Opened::Software(device) = &mut self.device {
            for connection in self.conversations.software.drain(..) {
                device.disconnect(connection)?;
            }
            device.flush();
        }
        match self.conversations.nic.take() {
            Some(nic) => nic.disconnect(),
            None => Ok(()),
        }
    }
}

/// The most payload of a packet at a device's port, in bytes.
fn device_mtu(device: &dyn Device) -> u32 {
    device.limits().mtu.bytes()
}

/// The queue pair that a client asks for, by what it has said.
fn asked_for(said: &[u8], pairs: &[QueuePair], peer: &str) -> Result<QueuePair> {
    let index = said.first_chunk().map(|it| u32::from_le_bytes(*it));
    match index.and_then(|index| pairs.get(index as usize)) {
        Some(&pair) => Ok(pair),
        None => bail!(
            "{peer} asks for queue pair {index:?} by rdma_cm, expected one of {}",
            pairs.len()
        ),
    }
}
