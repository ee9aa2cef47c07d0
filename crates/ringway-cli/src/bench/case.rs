//! What a benchmark's flags come to, checked before any rank starts.

use anyhow::{Result, bail};
use ringway::{
    Algorithm, Collective, DataType,
    settings::{Settings, Source},
};
use ringway_plan::{Topology, generate};

use super::Bench;
use crate::size;

/// A benchmark that makes sense.
pub(super) struct Case {
    pub(super) collective: Collective,
    /// None: the selector's choice.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) settings: Settings,
    dtype: DataType,
    /// Bytes of each vector, as they were asked for.
    sizes: Vec<usize>,
}

impl Case {
    pub(super) fn new(bench: &Bench) -> Result<Self> {
        let collective =
            Collective::parse(bench.collective.as_deref().unwrap_or_default(), bench.root)?;
        if collective.reduces() && !bench.op.supports(bench.dtype) {
            bail!(
                "{} is not defined for {}: it is for integers",
                bench.op,
                bench.dtype
            );
        }
        let algorithm = match bench.algorithm.as_str() {
            "auto" => None,
            name => Some(name.parse::<Algorithm>()?),
        };
        if let Some(algorithm) = algorithm.filter(|a| !a.supports(collective)) {
            bail!("{algorithm} cannot do {collective}; see `ringway plan list`");
        }
        let mut settings = Settings::load()?;
        if let Some(transport) = &bench.transport {
            settings.set(
                "transports",
                transport,
                Source::Flag {
                    name: "--transport".into(),
                },
            )?;
        }
        Ok(Self {
            collective,
            algorithm,
            settings,
            dtype: bench.dtype,
            sizes: sizes(bench)?,
        })
    }

    /// Checks what depends on the number of ranks.
    pub(super) fn check(&self, ranks: usize) -> Result<()> {
        if let Some(root) = self.collective.root().filter(|&root| root >= ranks) {
            bail!("--root {root} is none of {ranks} ranks: expected a root below {ranks}");
        }
        if let Some(algorithm) = self.algorithm {
            generate(self.collective, algorithm, &Topology::single_host(ranks))?;
        }
        Ok(())
    }

    /// Bytes of each vector to measure among `ranks`: whole elements, and as many of them for each rank's part. With
    /// a remark where that is not what was asked for. As in nccl-tests, sizes are rounded down.
    pub(super) fn vectors(&self, ranks: usize) -> (Vec<usize>, Option<String>) {
        let (collective, element) = (self.collective, self.dtype.size());
        if collective == Collective::Barrier {
            return (vec![0], None);
        }
        let parts = if collective.has_parts() { ranks } else { 1 };
        let unit = element * parts;
        let mut vectors: Vec<usize> = self
            .sizes
            .iter()
            .map(|bytes| (bytes / unit).max(1) * unit)
            .collect();
        let remark = (vectors != self.sizes).then(|| {
            let each = if parts > 1 {
                format!(", as many for each of {ranks} ranks")
            } else {
                String::new()
            };
            format!(
                "sizes are rounded to multiples of {unit} B: {} elements of {element} B{each}",
                self.dtype
            )
        });
        vectors.dedup();
        (vectors, remark)
    }
}

fn sizes(bench: &Bench) -> Result<Vec<usize>> {
    if let Some(sizes) = &bench.sizes {
        return Ok(sizes.clone());
    }
    if bench.min > bench.max {
        bail!(
            "-b {} is more than -e {}: expected the smallest size first",
            size::show(bench.min),
            size::show(bench.max)
        );
    }
    let next = |&size: &usize| match bench.step {
        Some(step) => size.checked_add(step),
        None => size.checked_mul(bench.factor.into()),
    };
    Ok(std::iter::successors(Some(bench.min), next)
        .take_while(|&size| size <= bench.max)
        .collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn case(flags: &str) -> Case {
        let words = std::iter::once("bench").chain(flags.split_whitespace());
        Case::new(&Line::try_parse_from(words).unwrap().bench).unwrap()
    }

    #[test]
    fn sizes_become_whole_elements_for_each_rank_and_a_remark_says_so() {
        let (vectors, remark) = case("all-reduce -b 4 -e 64").vectors(3);
        assert_eq!((vectors, remark), (vec![4, 16, 64], None));
        let (vectors, remark) = case("allreduce --sizes 1,3,6,9").vectors(3);
        assert_eq!(vectors, [4, 8]);
        assert!(remark.unwrap().contains("multiples of 4 B"));
        let (vectors, remark) = case("reduce_scatter --sizes 64 -d f64").vectors(3);
        assert_eq!(vectors, [48]);
        assert!(remark.unwrap().contains("multiples of 24 B"));
        assert_eq!(case("barrier").vectors(3), (vec![0], None));
    }

    #[test]
    fn what_the_ranks_would_refuse_is_refused_before_they_start() {
        let error = case("broadcast -r 2").check(2).unwrap_err().to_string();
        assert!(error.contains("below 2"), "{error}");
        case("broadcast -r 1").check(2).unwrap();
    }

    #[test]
    fn the_flags_of_nccl_tests_are_taken_or_refused_with_the_reason() {
        let parse = |flags: &[&str]| {
            let words = ["bench", "all_reduce"].iter().chain(flags);
            Line::try_parse_from(words).map_err(|error| error.to_string())
        };
        parse(&["-g", "1", "-t", "1"]).unwrap();
        for (flags, text) in [
            (["-g", "2"], "--ranks"),
            (["--sizes", "0"], "bench barrier"),
            (["-b", "0"], "bench barrier"),
            (["-i", "0"], "bench barrier"),
            (["--seconds", "0"], "more than 0"),
            (["--seconds", "nan"], "more than 0"),
        ] {
            let error = parse(&flags).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
