//! The software device's connection manager against Linux's, in the virtual machine of `cargo xtask test vm`: rping and
//! perftest's `-R` over rxe on one side, and the endpoint playing their other side on the other, which accepts them or
//! connects to them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod peer;
mod perftest;
mod rping;
#[path = "../soft_network/mod.rs"]
mod soft_network;

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ringway_sys::end_with_parent;
use soft_network::{Faults, in_namespace, line_with, lines};

/// What a child is to be, in words.
const ROLE: &str = "RINGWAY_TEST_CM_ROLE";

/// The addresses of rxe and the endpoint.
const PLACES: [[&str; 2]; 2] = [["10.0.0.1", "10.0.0.9"], ["fd00::1", "fd00::9"]];

/// Not a test of its own: what the others start in the endpoint's namespace.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<_> = role.split(' ').collect();
    match words[..] {
        ["rping", "server", ip, size, count] => {
            rping::serve(ip, size.parse().unwrap(), count.parse().unwrap());
        }
        ["rping", "client", ip, to, size, count] => {
            rping::ask(ip, to, size.parse().unwrap(), count.parse().unwrap());
        }
        ["perftest", "server", test, ip, size, count] => {
            perftest::serve(test, ip, size.parse().unwrap(), count.parse().unwrap());
        }
        ["perftest", "client", test, ip, to, size, count] => {
            perftest::ask(test, ip, to, size.parse().unwrap(), count.parse().unwrap());
        }
        _ => panic!("{role}"),
    }
    println!("\nall right");
}

/// The endpoint, in a process of its own.
fn endpoint(role: &str) -> Child {
    println!("{role}");
    in_namespace("role", ROLE, role).spawn().unwrap()
}

fn program(words: &str) -> Child {
    println!("{words}");
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdout(Stdio::piped());
    end_with_parent(&mut command);
    command.spawn().unwrap()
}

/// Waits for its end, which must be a good one. Returns what it has printed.
fn ends_well(what: &str, mut child: Child) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    text
}

/// The endpoint listens, and a program connects to it.
fn accepts(role: &str, client: &str) {
    let mut endpoint = endpoint(role);
    let mut said = lines(&mut endpoint);
    line_with("listening", &mut said);
    ends_well("the client", program(client));
    line_with("all right", &mut said);
    ends_well("the endpoint", endpoint);
}

/// A program listens, and the endpoint connects to it.
fn connects(server: &str, role: &str) {
    let server = program(server);
    let endpoint = endpoint(role);
    let text = ends_well("the endpoint", endpoint);
    assert!(text.contains("all right"), "{text}");
    ends_well("the server", server);
}

fn rping_both_ways(sizes: &[u32], count: u32) {
    for [rxe, endpoint] in PLACES {
        for size in sizes {
            accepts(
                &format!("rping server {endpoint} {size} {count}"),
                &format!("rping -c -V -I {rxe} -a {endpoint} -C {count} -S {size}"),
            );
            connects(
                &format!("rping -s -a {rxe} -S {size}"),
                &format!("rping client {endpoint} {rxe} {size} {count}"),
            );
        }
    }
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn rping_is_served_and_asked() {
    rping_both_ways(&[25, 16_001, 65_535], 10);
}

/// What is captured, to be looked at by others.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn rping_once() {
    rping_both_ways(&[5001], 1);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn rping_over_a_network_that_loses() {
    let network = Faults::new("loss 1%");
    rping_both_ways(&[16_001], 20);
    // Of some thousand packets.
    assert!(network.dropped() > 0);
}

/// With `-R`, perftest exchanges what it has to over one connection, and measures over another. Of IPv4 only, as it is.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn perftest_is_served_and_asked() {
    let [rxe, endpoint] = PLACES[0];
    for (test, size) in [("send_lat", 64), ("send_lat", 9000), ("write_bw", 65_536)] {
        let (count, flags) = (200, format!("-F -R -d rxe0 -n 200 -s {size}"));
        accepts(
            &format!("perftest server {test} {endpoint} {size} {count}"),
            &format!("ib_{test} {flags} {endpoint}"),
        );
        connects(
            &format!("ib_{test} {flags}"),
            &format!("perftest client {test} {endpoint} {rxe} {size} {count}"),
        );
    }
}
