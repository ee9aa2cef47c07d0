//! Launchers' variables: a launch that is made is sound, an error says what was expected. Each line is a letter, which
//! chooses the variable, and its value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway::{bootstrap::Launch, settings::Environment};

const VARIABLES: [&str; 26] = [
    "RINGWAY_RANK",
    "RINGWAY_WORLD_SIZE",
    "RINGWAY_LOCAL_RANK",
    "RINGWAY_MASTER",
    "RINGWAY_MASTER_PORT",
    "RINGWAY_JOB",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
];

fuzz_target!(|text: &str| {
    let variable = |line: &str| {
        let letter = line.bytes().next()?.checked_sub(b'a')?;
        Some((
            (*VARIABLES.get(usize::from(letter))?).to_owned(),
            line[1..].to_owned(),
        ))
    };
    let environment: Environment = text.lines().filter_map(variable).collect();
    ringway_fuzz::within(256 << 20, || {
        match Launch::from_environment(&environment, 7) {
            Ok(launch) => assert!(launch.rank < launch.size && launch.size <= 1 << 16),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
});
