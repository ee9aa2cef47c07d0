//! `ringway perf`: RDMA between two hosts measured as perftest does.

mod check;
mod client;
mod control;
mod device;
mod end;
mod figures;
mod latency;
mod managed;
mod message;
mod phase;
mod probe;
mod report;
mod server;
mod stream;
mod test;

use std::{
    net::TcpStream,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;

use crate::{
    output::{self, Output},
    size,
};
use client::{Client, Connection, Length};
pub(crate) use device::Name;
use figures::Row;
pub(crate) use probe::Probe;
use server::{Served, Server};
use test::{Measure, Operation, Test};

/// The requests under way at a queue pair unless --depth says another number, as in perftest.
const DEPTH: u32 = 128;

/// Measure RDMA between two hosts, with perftest's tests and columns.
///
/// Without a host's name it waits for a client, serves it and ends. With one it is the client: it says what is measured,
/// and the server follows; GIDs, MTU and sizes are agreed on over TCP. Data is checked byte by byte once for each size,
/// and wrong data is an error. Times of `write lat` and `send lat` are half a round trip, those of `read lat` and `atomic
/// lat` a request with its answer. The peak bandwidth is that of the best tenth of a run; GB are 10^9 bytes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ringway perf write bw                          # on one host: waits
  ringway perf write bw host1                    # on the other: measures
  ringway perf send lat host1 -d mlx5_0 --sizes 8,64,4K -n 10000 --histogram
  ringway perf read bw host1 --qps 4 --bidirectional --seconds 2 --json rows.json
  ringway perf write lat --local -d software     # both ends on this machine, no NIC needed
  ringway perf send bw host1 -d software --cm    # connected by rdma_cm's protocol")]
pub(crate) struct Perf {
    /// What requests do: write, send, read, or atomic (fetch and add on 8 bytes).
    operation: Operation,
    /// What is measured: bw (bandwidth) or lat (latency).
    measure: Measure,
    /// The server's name or address. Without it, this is the server.
    #[arg(conflicts_with = "local")]
    host: Option<String>,
    /// Be both ends, in two threads of this process, which meet at 127.0.0.2.
    #[arg(long)]
    local: bool,
    /// The device, as mlx5_0 or mlx5_0:1 with its port; `software` needs none. [default: the first whose port is up, else
    /// software]
    #[arg(short = 'd', long = "device", alias = "ib-dev", value_parser = Name::parse)]
    device: Option<Name>,
    /// The server's TCP port.
    #[arg(short = 'p', long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Message sizes, such as 2,64K,1M; `all` is 2 B to 8 MiB in powers of two. [default: all; 8 for atomic]
    #[arg(short = 's', long, alias = "size", value_parser = sizes)]
    sizes: Option<Sizes>,
    /// Messages for each size, at each queue pair.
    #[arg(short = 'n', long = "iters", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=test::ITERATIONS))]
    iterations: u64,
    /// As many messages as this takes for each size, in place of -n.
    #[arg(short = 'D', long, alias = "duration", conflicts_with = "iterations", value_parser = size::seconds)]
    seconds: Option<f64>,
    /// Queue pairs, with bw.
    #[arg(short = 'q', long = "qps", alias = "qp")]
    qps: Option<u32>,
    /// Both sides send at once, with bw; figures are those of both directions together.
    #[arg(short = 'b', long)]
    bidirectional: bool,
    /// Requests under way at each queue pair, with bw. [default: 128]
    #[arg(short = 't', long, alias = "tx-depth")]
    depth: Option<u32>,
    /// Connect queue pairs by rdma_cm (librdmacm, and in software its protocol at UDP port 4791), and not by addresses told over
    /// TCP.
    #[arg(short = 'R', long)]
    cm: bool,
    /// The most payload of a packet in bytes; less if either port has less.
    #[arg(short = 'm', long, default_value_t = 4096)]
    mtu: u32,
    /// Print how times are distributed, with lat; with --json as a field of each row.
    #[arg(short = 'H', long)]
    histogram: bool,
    /// Write the rows as JSON to this file; `-` is the standard output, without the table.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What clap shall not take for one value of several.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<u64>);

fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes((1..=23).map(|power| 1 << power).collect()));
    }
    let each = text.split(',').map(|one| match size::parse(one)? {
        0 => Err("expected at least 1 byte".to_owned()),
        bytes => Ok(bytes as u64),
    });
    each.collect::<Result<_, String>>().map(Sizes)
}

impl Perf {
    pub(crate) fn execute(self) -> Result<()> {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_writer(std::io::stderr)
            .init();
        let device = match &self.device {
            Some(device) => device.clone(),
            None => Name::usual()?,
        };
        let server = Server {
            operation: self.operation,
            measure: self.measure,
            device: device.clone(),
        };
        match (&self.host, self.local) {
            (None, false) => self.serve(&server),
            (None, true) => {
                let listener = server::listen_locally()?;
                let address = listener.local_addr().context("listening")?;
                // What is wrong with the flags is found before a thread waits for a client.
                let client = self.client(device)?;
                let files = self.output()?;
                let served = thread::spawn(move || server.serve(server::wait(&listener)?));
                let stream =
                    TcpStream::connect(address).context("connecting to the other thread")?;
                let measured = self.measure(&client, stream, files);
                let served = served
                    .join()
                    .map_err(|_| anyhow!("the server's thread panicked"))?;
                // The client's error has the server's words.
                measured?;
                served.map(drop)
            }
            (Some(host), _) => {
                let client = self.client(device)?;
                let files = self.output()?;
                self.measure(&client, client::reach(host, self.port)?, files)
            }
        }
    }

    fn serve(&self, server: &Server) -> Result<()> {
        if let Some(flag) = self.flags_of_clients() {
            bail!("{flag} is for the client to say: give it there, or a host's name, or --local");
        }
        let listener = server::listen(self.port)?;
        eprintln!(
            "ringway: waiting at TCP port {} for `ringway perf {} {} HOST`",
            self.port,
            self.operation.name(),
            self.measure.name()
        );
        let Served {
            sizes,
            peer,
            devices: [own, other],
        } = server.serve(server::wait(&listener)?)?;
        eprintln!("ringway: served {peer}: {other} -> {own}, sizes {sizes}, all data right");
        Ok(())
    }

    /// A flag that has no meaning for a server, which follows.
    fn flags_of_clients(&self) -> Option<&'static str> {
        let given = [
            (self.sizes.is_some(), "--sizes"),
            (self.seconds.is_some(), "--seconds"),
            (self.qps.is_some(), "--qps"),
            (self.bidirectional, "--bidirectional"),
            (self.depth.is_some(), "--depth"),
            (self.cm, "--cm"),
            (self.histogram, "--histogram"),
            (self.json.is_some(), "--json"),
        ];
        given
            .into_iter()
            .find_map(|(given, flag)| given.then_some(flag))
    }

    fn client(&self, device: Name) -> Result<Client> {
        if self.histogram && self.measure == Measure::Bw {
            bail!("--histogram is of times: it goes with `lat`");
        }
        let sizes = match (&self.sizes, self.operation) {
            (Some(Sizes(sizes)), _) => sizes.clone(),
            (None, Operation::Atomic) => vec![8],
            (None, _) => sizes("all").map_err(|text| anyhow!(text))?.0,
        };
        let bandwidth = self.measure == Measure::Bw;
        if self.depth.is_some() && !bandwidth {
            bail!("latency is measured with one request under way: --depth goes with `bw`");
        }
        let test = Test {
            operation: self.operation,
            measure: self.measure,
            bidirectional: self.bidirectional,
            qps: self.qps.unwrap_or(1),
            depth: self.depth.unwrap_or(if bandwidth { DEPTH } else { 1 }),
            mtu: self.mtu,
            longest: sizes.iter().copied().max().unwrap_or(1),
            managed: self.cm,
        };
        test.check()?;
        if test.operation == Operation::Atomic && sizes.iter().any(|&bytes| bytes != 8) {
            bail!("atomic operations are on 8 bytes: leave --sizes out");
        }
        let length = match self.seconds {
            Some(seconds) => Length::Seconds(seconds),
            None => Length::Iterations(self.iterations),
        };
        Ok(Client {
            test,
            sizes,
            length,
            device,
        })
    }

    /// The file for the rows; none if they aren't asked for, or go to the standard output.
    fn output(&self) -> Result<Option<Output>> {
        let file = self.json.as_deref().filter(|path| !is_stdout(path));
        file.map(|path| Output::open("--json", path)).transpose()
    }

    fn measure(&self, client: &Client, stream: TcpStream, file: Option<Output>) -> Result<()> {
        let to_stdout = self.json.as_deref().is_some_and(is_stdout);
        let (mut connection, mut rows) = (None, Vec::new());
        client.measure(
            stream,
            &mut |made: &Connection| {
                if !to_stdout {
                    output::print(&format!("{}\n", report::heading(&client.test, made)))?;
                }
                connection = Some(made.clone());
                Ok(())
            },
            &mut |row: &Row| {
                if !to_stdout {
                    output::print(&format!("{}\n", report::line(row)))?;
                    if self.histogram {
                        output::print(&report::bars(row).to_string())?;
                    }
                }
                rows.push(row.clone());
                Ok(())
            },
        )?;
        let Some(connection) = connection.filter(|_| self.json.is_some()) else {
            return Ok(());
        };
        let values: Vec<_> = rows
            .iter()
            .map(|row| report::json(&client.test, &connection, row, self.histogram))
            .collect();
        let text = format!("{}\n", serde_json::to_string_pretty(&values)?);
        let written = file.map_or(Ok(()), |file| file.write(&text));
        // Rows that cannot be written are printed.
        if to_stdout || written.is_err() {
            output::print(&text)?;
        }
        written
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_users_write_them() {
        let all = sizes("all").unwrap().0;
        assert_eq!((all.len(), all[0], all[22]), (23, 2, 8 << 20));
        assert_eq!(sizes("1,64K,1M"), Ok(Sizes(vec![1, 65536, 1 << 20])));
        for bad in ["", "0", "4,", "4,x"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }
}
