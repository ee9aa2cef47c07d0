//! All-reduces for a while, and every second what they took: for links that change meanwhile.
//!
//!     cargo build --release -p ringway --example adapt
//!     ringway lab run fabric.yaml --name lab -- target/release/examples/adapt 1048576 60 &
//!     sleep 20; ringway lab rate --name lab spine0 50%
//!
//! Arguments: bytes of the vector, and seconds.

use std::time::{Duration, Instant};

use ringway::{Collective, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let (bytes, seconds) = match (arguments.next(), arguments.next()) {
        (Some(bytes), Some(seconds)) => (bytes?, seconds?),
        _ => (1 << 20, 60),
    };
    let comm = ringway::init()?;
    let elements = bytes as usize / size_of::<u32>();
    let right = (0..comm.size() as u32).sum::<u32>();
    let mut vector = vec![0; elements];
    let (began, mut times, mut second) = (Instant::now(), Vec::new(), 1);
    let mut told = 0;
    let mut go_on = [1];
    while go_on == [1] {
        vector.fill(comm.rank() as u32);
        let from = Instant::now();
        comm.all_reduce(&mut vector, ReduceOp::Sum)?;
        times.push(from.elapsed());
        assert!(vector.iter().all(|&sum| sum == right), "a wrong sum");
        let gone = began.elapsed();
        if comm.rank() == 0 {
            let replans = comm.replans();
            for replan in &replans[told..] {
                println!("{:6.1} s  {replan}", gone.as_secs_f64());
            }
            told = replans.len();
            if gone >= Duration::from_secs(second) {
                times.sort_unstable();
                let median = times[times.len() / 2].as_secs_f64() * 1e3;
                let algorithm = comm.algorithm(Collective::AllReduce, elements * size_of::<u32>());
                println!(
                    "{:6.1} s  {:4} all-reduces, median {median:8.2} ms, by {algorithm}",
                    gone.as_secs_f64(),
                    times.len()
                );
                second = gone.as_secs() + 1;
                times.clear();
            }
        }
        // All ranks end after the same operation.
        go_on = [u32::from(gone.as_secs() < seconds.into())];
        comm.broadcast(&mut go_on, 0)?;
    }
    Ok(())
}
