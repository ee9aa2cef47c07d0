//! `ringway fabric k8s` and `ringway fabric slurm`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ringway_doctor::config::{Job, Scheduler, render_job};

use super::config::read;
use crate::output;

/// A job over the lossless network of an intent.
#[derive(Debug, Args)]
pub(crate) struct Shape {
    /// The intent: a YAML file.
    intent: PathBuf,
    /// The job's name.
    #[arg(long, default_value = "train")]
    name: String,
    /// How many hosts.
    #[arg(long, default_value_t = 2)]
    hosts: u32,
    /// Ranks on each host.
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Processors for each rank.
    #[arg(long, default_value_t = 4)]
    cpus: u32,
    /// Ranks have no GPUs.
    #[arg(long)]
    no_gpus: bool,
    /// As JSON: the text.
    #[arg(long)]
    json: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Kubernetes manifests of a job: SR-IOV networks, RDMA resources, headless service, indexed job.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ringway fabric k8s lossless.yaml --hosts 4 --image registry/train:1 -- train.py --epochs 3 > job.yaml\n  \
                  kubectl apply --dry-run=server -f job.yaml"
)]
pub(crate) struct K8s {
    #[command(flatten)]
    shape: Shape,
    /// The container's image.
    #[arg(long)]
    image: String,
    /// Memory of each host's container.
    #[arg(long, default_value = "64Gi")]
    memory: String,
}

/// A Slurm script of a job, with the limits that hosts need, and the lines for torchrun and mpirun.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ringway fabric slurm lossless.yaml --hosts 4 -- python train.py > job.sh && sbatch job.sh"
)]
pub(crate) struct Slurm {
    #[command(flatten)]
    shape: Shape,
}

impl K8s {
    pub(crate) fn execute(self) -> Result<()> {
        self.shape
            .print(Scheduler::Kubernetes, self.image, self.memory)
    }
}

impl Slurm {
    pub(crate) fn execute(self) -> Result<()> {
        // A script names neither image nor memory; the check of a job wants some.
        self.shape
            .print(Scheduler::Slurm, String::new(), "1Gi".to_owned())
    }
}

impl Shape {
    fn print(self, scheduler: Scheduler, image: String, memory: String) -> Result<()> {
        let intent = read(&self.intent)?;
        let job = Job {
            name: self.name,
            hosts: self.hosts,
            ranks: self.ranks,
            cpus: self.cpus,
            memory,
            gpus: !self.no_gpus,
            image,
            command: self.command,
        };
        let text = render_job(&intent, &job, scheduler)?;
        if self.json {
            output::print_json(&serde_json::json!({ "text": text }))
        } else {
            output::print(&text)
        }
    }
}
