//! Sums a vector over all ranks.
//!
//! ```text
//! cargo build --release --examples
//! ringway run -n 4 -- target/release/examples/allreduce
//!
//! [0] 4 ranks over shm: every element is 10
//! ```

use ringway::ReduceOp;

fn main() -> Result<(), ringway::Error> {
    let comm = ringway::init()?;
    let mut gradients = vec![comm.rank() as f32 + 1.0; 1 << 20];
    comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    if comm.rank() == 0 {
        println!(
            "{} ranks over {}: every element is {}",
            comm.size(),
            comm.path(),
            gradients[0]
        );
    }
    Ok(())
}
