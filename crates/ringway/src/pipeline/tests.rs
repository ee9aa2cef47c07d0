use super::{GradientPipeline, partition, priority};
use crate::{
    Communicator, Error, ReduceOp,
    tests::{Over, world_over},
};

const LENGTHS: [usize; 6] = [5, 3000, 40, 1, 700, 2];
const BUCKET: usize = 2000;

/// The gradient of a rank, different in each step.
fn gradient(rank: usize, step: usize, parameter: usize) -> Vec<f32> {
    (0..LENGTHS[parameter])
        .map(|i| ((rank + 1) * (step + 3) * (parameter + 7) * (i % 89 + 1)) as f32 / 7.0)
        .collect()
}

fn backward(pipeline: &mut GradientPipeline<f32>, rank: usize, step: usize) -> Result<(), Error> {
    for parameter in (0..LENGTHS.len()).rev() {
        pipeline
            .gradient(parameter)?
            .copy_from_slice(&gradient(rank, step, parameter));
        pipeline.ready(parameter)?;
    }
    Ok(())
}

fn pipeline(comm: &Communicator) -> GradientPipeline<f32> {
    GradientPipeline::new(comm, &LENGTHS, BUCKET).unwrap()
}

#[test]
fn buckets_are_neighbours_and_large_parameters_are_alone() {
    assert_eq!(partition(&LENGTHS, 500), [0..1, 1..2, 2..4, 4..5, 5..6]);
    assert_eq!(partition(&[1, 1, 10], 5), [0..2, 2..3]);
    assert_eq!(partition(&[10, 10], 1), [0..1, 1..2]);
    assert_eq!(partition(&[], 1), []);
    assert_eq!([priority(0, 300), priority(299, 300)], [255, 2]);
}

/// The same bits as all-reduces of the same vectors afterwards, in every step and whatever is waited for first.
#[test]
fn averages_are_those_of_calls_afterwards() {
    for over in [Over::Messages, Over::Mapped] {
        for ranks in [1, 2, 3, 5] {
            world_over(over, ranks, &[], |comm| {
                let mut pipeline = pipeline(&comm);
                for step in 0..4 {
                    backward(&mut pipeline, comm.rank(), step).unwrap();
                    let mut expected = Vec::new();
                    for bucket in partition(&LENGTHS, BUCKET / size_of::<f32>()) {
                        let gradients = bucket.map(|it| gradient(comm.rank(), step, it));
                        let mut vector = gradients.collect::<Vec<_>>().concat();
                        comm.all_reduce(&mut vector, ReduceOp::Average).unwrap();
                        expected.append(&mut vector);
                    }
                    let mut found: [Vec<f32>; LENGTHS.len()] = Default::default();
                    for turn in 0..LENGTHS.len() {
                        let last = LENGTHS.len() - 1;
                        let parameter = if step % 2 == 0 { turn } else { last - turn };
                        found[parameter] = pipeline.wait(parameter).unwrap().to_vec();
                    }
                    assert_eq!(found.concat(), expected, "step {step}");
                }
            });
        }
    }
}

#[test]
fn a_parameter_that_is_left_out_is_named() {
    world_over(Over::Mapped, 2, &[], |comm| {
        let mut pipeline = pipeline(&comm);
        for parameter in [5, 4, 2, 1, 0] {
            pipeline.gradient(parameter).unwrap().fill(1.0);
            pipeline.ready(parameter).unwrap();
        }
        assert_eq!(pipeline.wait(5).unwrap(), [1.0, 1.0]);
        let error = pipeline.wait(0).unwrap_err().to_string();
        assert!(error.contains("has not called `ready` for 3:"), "{error}");
        pipeline.gradient(3).unwrap().fill(1.0);
        pipeline.ready(3).unwrap();
        assert_eq!(pipeline.wait(0).unwrap(), [1.0; 5]);
    });
}

#[test]
fn what_is_ready_is_not_written_any_more() {
    world_over(Over::Mapped, 2, &[], |comm| {
        let mut pipeline = pipeline(&comm);
        pipeline.ready(4).unwrap();
        for error in [pipeline.gradient(4).err(), pipeline.ready(4).err()] {
            let error = error.unwrap().to_string();
            assert!(error.contains("parameter 4 is ready already"), "{error}");
        }
        let error = pipeline.gradient(6).unwrap_err().to_string();
        assert!(error.contains("expected one of 0 to 5"), "{error}");
    });
}

/// The communicator's own calls may come in between, in another order on each rank.
#[test]
fn other_calls_are_no_concern_of_it() {
    world_over(Over::Mapped, 2, &[], |comm| {
        let mut pipeline = pipeline(&comm);
        for step in 0..3 {
            let mut x = [1.0_f32];
            if comm.rank() == 0 {
                backward(&mut pipeline, 0, step).unwrap();
                comm.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            } else {
                comm.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                backward(&mut pipeline, 1, step).unwrap();
            }
            assert_eq!(x, [2.0]);
            for parameter in 0..LENGTHS.len() {
                pipeline.wait(parameter).unwrap();
            }
        }
    });
}

#[test]
fn a_rank_that_goes_away_is_named_in_the_middle() {
    for over in [Over::Messages, Over::Mapped] {
        let errors = world_over(over, 3, &[("timeout", "20s")], |comm| {
            let mut pipeline = pipeline(&comm);
            if comm.rank() == 2 {
                return String::new();
            }
            backward(&mut pipeline, comm.rank(), 0).unwrap();
            let error = pipeline.wait(0).unwrap_err().to_string();
            let again = pipeline.wait(0).unwrap_err().to_string();
            assert!(again.contains("has failed before"), "{again}");
            error
        });
        for error in &errors[..2] {
            assert!(error.contains("rank 2 "), "{error}");
        }
    }
}

/// One rank leaves a parameter out: it learns which, and the others who it was.
#[test]
fn a_parameter_that_one_rank_leaves_out_is_an_error_on_all() {
    let errors = world_over(Over::Messages, 2, &[("timeout", "20s")], |comm| {
        let mut pipeline = pipeline(&comm);
        if comm.rank() == 0 {
            backward(&mut pipeline, 0, 0).unwrap();
        } else {
            for parameter in [5, 4, 2, 1, 0] {
                pipeline.ready(parameter).unwrap();
            }
        }
        pipeline.wait(0).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 "), "{}", errors[0]);
    assert!(
        errors[1].contains("has not called `ready` for 3"),
        "{}",
        errors[1]
    );
}
