//! What each launcher's environment means, and what is wrong with those that mean nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway::{
    bootstrap::{BootstrapError, Launch, Launcher, Rendezvous},
    settings::Environment,
};

fn launch(text: &str) -> Result<Launch, BootstrapError> {
    let variables = text
        .split_whitespace()
        .map(|pair| pair.split_once('=').unwrap());
    Launch::from_environment(&variables.collect::<Environment>(), 4711)
}

fn master(launch: &Launch) -> (&str, u16) {
    match &launch.rendezvous {
        Rendezvous::Master { host, port } => (host, *port),
        Rendezvous::Store(_) => panic!("no master"),
    }
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=gpu01 MASTER_PORT=29500 \
                        TORCHELASTIC_RUN_ID=r7 TORCHELASTIC_RESTART_COUNT=2";
const SLURM: &str = "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_JOB_NODELIST=gpu[07,09-10]-ib \
                     SLURM_JOB_ID=4242 SLURM_STEP_ID=1";
const OPENMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                       OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-vm-20096@1";
const MPICH: &str = "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2";

#[test]
fn ringway_variables() {
    let it = launch("RINGWAY_RANK=1 RINGWAY_WORLD_SIZE=4 RINGWAY_MASTER=[fd00::1]:29400").unwrap();
    assert_eq!((it.launcher, it.rank, it.size), (Launcher::Ringway, 1, 4));
    assert_eq!((it.local_rank, master(&it)), (None, ("fd00::1", 29400)));
    let it =
        launch("RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=gpu01 RINGWAY_MASTER_PORT=5000");
    assert_eq!(master(&it.unwrap()), ("gpu01", 5000));
}

#[test]
fn a_world_of_one_needs_no_master() {
    for text in [
        "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=1",
        "RANK=0 WORLD_SIZE=1",
        "SLURM_PROCID=0 SLURM_NTASKS=1",
    ] {
        assert_eq!(master(&launch(text).unwrap()), ("127.0.0.1", 0), "{text}");
    }
}

#[test]
fn torchrun() {
    let it = launch(TORCHRUN).unwrap();
    assert_eq!(
        (it.launcher, it.rank, it.size, it.local_rank),
        (Launcher::Torchrun, 5, 8, Some(1))
    );
    assert_eq!((master(&it), it.job.as_str()), (("gpu01", 29500), "r7/2"));
    let with_store = launch(&format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True")).unwrap();
    assert_eq!(master(&with_store), ("gpu01", 29501));
    let chosen = launch(&format!("{TORCHRUN} RINGWAY_MASTER_PORT=600")).unwrap();
    assert_eq!(master(&chosen), ("gpu01", 600));
}

#[test]
fn slurm() {
    let it = launch(SLURM).unwrap();
    assert_eq!(
        (it.launcher, it.rank, it.size, it.local_rank),
        (Launcher::Slurm, 3, 8, Some(1))
    );
    let (host, port) = master(&it);
    assert_eq!((host, it.job.as_str()), ("gpu07-ib", "4242.1"));
    assert!((15_000..31_384).contains(&port));
    let other_step = launch(&SLURM.replace("STEP_ID=1", "STEP_ID=2")).unwrap();
    assert_ne!(master(&other_step).1, port);
    // A step on part of the job's hosts and tasks.
    let part = launch(&format!(
        "{SLURM} SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=gpu09-ib"
    ))
    .unwrap();
    assert_eq!((part.size, master(&part).0), (4, "gpu09-ib"));
}

#[test]
fn mpi_on_one_host_needs_no_master() {
    let it = launch(OPENMPI).unwrap();
    assert_eq!(
        (it.launcher, it.rank, it.size, it.local_rank),
        (Launcher::OpenMpi, 1, 2, Some(1))
    );
    assert_eq!(master(&it).0, "127.0.0.1");
    let it = launch(MPICH).unwrap();
    assert_eq!(
        (it.launcher, it.rank, it.size, it.local_rank),
        (Launcher::Mpich, 0, 2, Some(0))
    );
    assert_eq!(
        (master(&it).0, it.job.as_str()),
        ("127.0.0.1", "parent 4711")
    );
}

#[test]
fn mpi_on_several_hosts_needs_one() {
    for text in [
        OPENMPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1"),
        MPICH.replace("MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS=1"),
    ] {
        let error = launch(&text).unwrap_err().to_string();
        assert!(
            error.contains("RINGWAY_MASTER") && error.contains("mpirun -x"),
            "{error}"
        );
        let it = launch(&format!("{text} RINGWAY_MASTER=gpu01:700")).unwrap();
        assert_eq!(master(&it), ("gpu01", 700));
        let it = launch(&format!("{text} MASTER_ADDR=gpu01 MASTER_PORT=29500")).unwrap();
        assert_eq!(master(&it), ("gpu01", 29500));
    }
}

#[test]
fn launchers_nest_and_the_innermost_counts() {
    let torchrun_on_each_node = format!("{TORCHRUN} SLURM_PROCID=1 SLURM_NTASKS=2");
    assert_eq!(launch(&torchrun_on_each_node).unwrap().rank, 5);
    let same = launch(&format!("{SLURM} PMI_RANK=3 PMI_SIZE=8 MPI_LOCALNRANKS=4"));
    assert!(same.unwrap_err().to_string().contains("RINGWAY_MASTER"));
    // The size alone, as Slurm's batch scripts have it, is no launch.
    assert_eq!(
        launch(&format!("{OPENMPI} SLURM_NTASKS=8"))
            .unwrap()
            .launcher,
        Launcher::OpenMpi
    );
}

/// Every mistake is told with the variable, what was expected, what was found, and a remedy.
#[test]
fn mistakes_are_named() {
    for (text, parts) in [
        (
            "",
            ["no launcher", "RINGWAY_RANK", "ringway run", "torchrun"],
        ),
        (
            "RANK=0",
            [
                "WORLD_SIZE: expected",
                "because RANK is 0",
                "found nothing",
                "set both",
            ],
        ),
        (
            "WORLD_SIZE=2",
            [
                "RANK: expected",
                "because WORLD_SIZE is 2",
                "found nothing",
                "set both",
            ],
        ),
        (
            "RANK=4 WORLD_SIZE=4",
            ["RANK: expected", "from 0 to 3", "found 4", "count from 0"],
        ),
        (
            "RANK=one WORLD_SIZE=4",
            ["RANK: expected", "whole number", "`one`", "correct it"],
        ),
        (
            "RANK=-1 WORLD_SIZE=4",
            ["RANK: expected", "whole number", "`-1`", "correct it"],
        ),
        (
            "RANK=0 WORLD_SIZE=0",
            ["WORLD_SIZE: expected", "from 1 to", "found 0", "correct it"],
        ),
        (
            "RANK=0 WORLD_SIZE=99999999",
            [
                "WORLD_SIZE: expected",
                "to 65536",
                "found 99999999",
                "correct",
            ],
        ),
        (
            "RANK=0 WORLD_SIZE=2",
            [
                "MASTER_ADDR: expected",
                "host of rank 0",
                "found nothing",
                "torchrun",
            ],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a",
            [
                "MASTER_PORT: expected",
                "port",
                "found nothing",
                "all ranks",
            ],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000",
            [
                "MASTER_PORT: expected",
                "1 to 65535",
                "`70000`",
                "correct it",
            ],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
            [
                "MASTER_PORT: expected",
                "below 65535",
                "found 65535",
                "RINGWAY_MASTER_PORT",
            ],
        ),
        (
            "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2",
            ["RINGWAY_MASTER: expected", "host", "nothing", "host:port"],
        ),
        (
            "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=gpu01",
            [
                "RINGWAY_MASTER: expected",
                "host:port",
                "`gpu01`",
                "add the port",
            ],
        ),
        (
            "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=gpu01:x",
            [
                "RINGWAY_MASTER: expected",
                "host:port",
                "`gpu01:x`",
                "correct it",
            ],
        ),
        (
            "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=a:1 RINGWAY_MASTER_PORT=2",
            [
                "RINGWAY_MASTER_PORT: expected",
                "port 1",
                "found 2",
                "only one",
            ],
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=gpu[1",
            [
                "SLURM_JOB_NODELIST: expected",
                "list of hosts",
                "`gpu[1`",
                "RINGWAY_MASTER",
            ],
        ),
        (
            "RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
            [
                "RANK and WORLD_SIZE: expected",
                "rank 2 of 4",
                "rank 0 of 1",
                "contradict",
            ],
        ),
        (
            "RINGWAY_RANK=0 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=a:1 RANK=1 WORLD_SIZE=2",
            [
                "RINGWAY_RANK and RINGWAY_WORLD_SIZE",
                "rank 1 of 2",
                "rank 0 of 2",
                "unset",
            ],
        ),
    ] {
        let error = launch(text).expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
        }
    }
}
