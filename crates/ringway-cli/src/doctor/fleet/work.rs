//! What a rank's processor and memory do: the same small work on all hosts.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use ringway_doctor::fleet::{Rate, Work};
use rustix::time::{ClockId, clock_gettime};

use super::strain::Watch;

/// How often each is measured. A moment's disturbance spoils one run, and neither the best nor the median.
const RUNS: usize = 15;

/// How long a run is, at least: longer than the turns of 3 ms that Linux gives processes which share a CPU, so that one that
/// is shared shows.
const RUN: Duration = Duration::from_millis(6);

/// Sums that are independent of each other, as many as keep the units for floating point busy.
const SUMS: usize = 16;

/// Multiplications and additions of each sum at a time.
const STEPS: usize = 20_000;

/// Bytes of each of the two buffers: more than caches hold that are not shared with others.
const BYTES: usize = 32 << 20;

/// Measures, in less than half a second.
pub(super) fn measure() -> Work {
    let watch = Watch::start();
    let mut sums = [1.0_f32; SUMS];
    let operations = (2 * SUMS * STEPS) as f64;
    let compute = rate(operations, || {
        let factor = black_box(0.999_f32);
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = *sum * factor + 0.5;
            }
        }
        black_box(&mut sums);
    });
    let from = vec![1_u8; BYTES];
    let mut to = vec![0_u8; BYTES];
    let memory = rate(BYTES as f64, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    });
    Work {
        compute,
        memory,
        strain: watch.end(),
    }
}

/// How much of it is done in a second, `amount` at a time. The quickest run goes by the time in which this thread had a CPU:
/// it tells what the hardware does, however many want it.
fn rate(amount: f64, mut work: impl FnMut()) -> Rate {
    let mut best = 0.0_f64;
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (start, ran, mut done) = (Instant::now(), cpu_time(), 0.0);
            while start.elapsed() < RUN {
                work();
                done += amount;
            }
            let ran = (cpu_time() - ran).max(f64::MIN_POSITIVE);
            best = best.max(done / ran);
            done / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    Rate {
        best,
        typical: rates[RUNS / 2],
    }
}

/// Seconds in which this thread had a CPU.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
