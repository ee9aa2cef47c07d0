//! `ringway fabric new`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use ringway_fabric::Shape;

use crate::output::{self, Output};

/// Write a commented fabric file of a usual topology, to be edited.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric new leaf-spine --hosts 64 --leaves 8 --spines 8 > fabric.yaml\n  ringway fabric new fat-tree --k 8 --output fabric.yaml\n  ringway fabric new torus --size 4x4x4"
)]
pub(crate) struct New {
    #[command(subcommand)]
    kind: Kind,
    /// Write it to this file, in place of standard output.
    #[arg(long, short, global = true)]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// k pods of k/2 leaves and k/2 spines, and (k/2)^2 cores: k^3/4 hosts, not oversubscribed.
    FatTree {
        /// Ports of a switch; even.
        #[arg(long, default_value_t = 8)]
        k: usize,
        /// GPUs of a host.
        #[arg(long, default_value_t = 8)]
        gpus: usize,
    },
    /// Every leaf to every spine.
    LeafSpine {
        /// In all; a multiple of the leaves.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// How many.
        #[arg(long, default_value_t = 8)]
        leaves: usize,
        /// How many.
        #[arg(long, default_value_t = 8)]
        spines: usize,
        /// GPUs of a host.
        #[arg(long, default_value_t = 8)]
        gpus: usize,
    },
    /// NIC k of every host on a leaf of its own.
    RailOptimised {
        /// In all; a multiple of the blocks.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// GPUs and NICs of a host.
        #[arg(long, default_value_t = 8)]
        rails: usize,
        /// Sets of hosts with leaves of their own.
        #[arg(long, default_value_t = 2)]
        blocks: usize,
        /// How many.
        #[arg(long, default_value_t = 8)]
        spines: usize,
    },
    /// Pods of leaves under two spines, and two cores, oversubscribed.
    ThreeTier {
        /// In all; a multiple of all leaves.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// How many.
        #[arg(long, default_value_t = 4)]
        pods: usize,
        /// Leaves of a pod.
        #[arg(long, default_value_t = 2)]
        leaves: usize,
        /// At the leaves and at the spines: 4 is 4:1.
        #[arg(long, default_value_t = 4)]
        oversubscription: usize,
        /// GPUs of a host.
        #[arg(long, default_value_t = 8)]
        gpus: usize,
    },
    /// Hosts linked to their neighbours in two or three dimensions.
    Torus {
        /// Hosts in each dimension: 4x4, 4x4x4 ...
        #[arg(long, default_value = "4x4", value_parser = size)]
        size: Size,
        /// GPUs of a host.
        #[arg(long, default_value_t = 8)]
        gpus: usize,
    },
}

/// Hosts in each dimension.
#[derive(Clone, Debug)]
struct Size(Vec<usize>);

fn size(text: &str) -> Result<Size, String> {
    let sides = text.split('x').map(str::parse).collect::<Result<_, _>>();
    sides
        .map(Size)
        .map_err(|_| "expected two or three numbers, such as 4x4 or 4x4x4".to_owned())
}

impl New {
    pub(crate) fn execute(self) -> Result<()> {
        let text = shape(self.kind).file()?;
        match self.output {
            None => output::print(&text),
            Some(path) => Output::open("--output", &path)?.write(&text),
        }
    }
}

fn shape(kind: Kind) -> Shape {
    match kind {
        Kind::FatTree { k, gpus } => Shape::FatTree { k, gpus },
        Kind::LeafSpine {
            hosts,
            leaves,
            spines,
            gpus,
        } => Shape::LeafSpine {
            hosts,
            leaves,
            spines,
            gpus,
        },
        Kind::RailOptimised {
            hosts,
            rails,
            blocks,
            spines,
        } => Shape::RailOptimised {
            hosts,
            rails,
            blocks,
            spines,
        },
        Kind::ThreeTier {
            hosts,
            pods,
            leaves,
            oversubscription,
            gpus,
        } => Shape::ThreeTier {
            hosts,
            pods,
            leaves,
            oversubscription,
            gpus,
        },
        Kind::Torus { size, gpus } => Shape::Torus { size: size.0, gpus },
    }
}
