//! RoCE packets, IP packets around them, and messages of connection management, from the network.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::within;
use ringway_roce::{
    cm::{IpHeader, Mad, Message},
    wire::{Flow, IpPacket, Packet},
};

fuzz_target!(|bytes: &[u8]| {
    let Some(flow) = Flow::new(
        Ipv4Addr::LOCALHOST.into(),
        Ipv4Addr::LOCALHOST.into(),
        49152,
    ) else {
        return;
    };
    let (outer, datagram) = match within(0, || IpPacket::parse(bytes)) {
        Ok(outer) => (outer.flow, outer.datagram),
        Err(_) => (flow, bytes),
    };
    within(0, || outer.verify_icrc(datagram));
    if let Ok(packet) = within(0, || Packet::parse(datagram)) {
        let mut again = Vec::new();
        packet.emit(&outer, &mut again);
        assert_eq!(Packet::parse(&again), Ok(packet));
        assert!(outer.verify_icrc(&again));
        let _ = Mad::from_packet(&packet);
    }
    if let Ok(mad) = within(0, || Mad::parse(bytes)) {
        assert_eq!(Mad::parse(&mad.emit()), Ok(mad.clone()));
        if let Message::Req(req) = &mad.message
            && let Some(header) = req.private_data.first_chunk().and_then(IpHeader::parse)
        {
            assert_eq!(IpHeader::parse(&header.emit()), Some(header));
        }
    }
});
