//! A schedule for people to read.

use std::fmt::Write as _;

use crate::schedule::Schedule;

impl Schedule {
    /// The schedule as a text table: a heading, then for each rank its steps in order, lane by lane, with
    /// what each waits for beyond its lane.
    pub fn table(&self) -> String {
        let root = self
            .collective
            .root()
            .map_or_else(String::new, |r| format!(" from or to rank {r}"));
        let mut text = format!(
            "{}{root} by {}: {} ranks, {} chunks, {} steps\n",
            self.collective,
            self.algorithm,
            self.ranks(),
            self.chunks,
            self.steps()
        );
        let steps = self
            .programs
            .iter()
            .flat_map(|p| &p.lanes)
            .flat_map(|l| &l.steps);
        let width = steps
            .map(|s| s.op.to_string().len())
            .max()
            .unwrap_or(0)
            .max("operation".len());
        for (rank, program) in self.programs.iter().enumerate() {
            let _ = write!(text, "\nrank {rank}");
            if !program.scratch.is_empty() {
                let _ = write!(
                    text,
                    ", scratch of the size of chunks {:?}",
                    program.scratch
                );
            }
            let _ = writeln!(text, "\n  lane  step  {:width$}  after", "operation");
            for (lane, l) in program.lanes.iter().enumerate() {
                for (step, s) in l.steps.iter().enumerate() {
                    let after: Vec<_> = s.after.iter().map(ToString::to_string).collect();
                    let op = s.op.to_string();
                    let line = format!("  {lane:>4}  {step:>4}  {op:width$}  {}", after.join(", "));
                    let _ = writeln!(text, "{}", line.trim_end());
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Collective, Topology, generate};

    #[test]
    fn tables_name_every_step() {
        let topology = Topology::single_host(2);
        let ring = generate(Collective::AllReduce, Algorithm::Ring, &topology).unwrap();
        let expected = "\
all_reduce by ring: 2 ranks, 2 chunks, 8 steps

rank 0
  lane  step  operation                            after
     0     0  send in[1] to 1
     0     1  recv-reduce out[0] = from 1 + in[0]
     0     2  send out[0] to 1
     0     3  recv out[1] from 1

rank 1
  lane  step  operation                            after
     0     0  send in[0] to 0
     0     1  recv-reduce out[1] = from 0 + in[1]
     0     2  send out[1] to 0
     0     3  recv out[0] from 0
";
        let table = ring.table();
        assert_eq!(table, expected, "\n{table}");

        let barrier = generate(
            Collective::Barrier,
            Algorithm::Tree,
            &Topology::single_host(3),
        );
        let table = barrier.unwrap().table();
        let waits = "     2     0  send out[0..0] to 2    lane 1 step 0, lane 1 step 1\n";
        assert!(table.contains(waits), "{table}");
    }
}
