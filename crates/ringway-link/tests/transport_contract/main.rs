//! What every transport promises, run over each: one list of properties.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod failures;
mod messages;
mod sleeping;
mod worlds;

/// Runs each property over each transport.
macro_rules! contract {
    ($($module:ident: $($property:ident)*;)*) => {
        mod loopback { $($(#[test] fn $property() { super::$module::$property(super::worlds::loopback); })*)* }
        mod shm { $($(#[test] fn $property() { super::$module::$property(super::worlds::shm); })*)* }
        mod tcp { $($(#[test] fn $property() { super::$module::$property(super::worlds::tcp); })*)* }
        mod rdma { $($(#[test] fn $property() { super::$module::$property(super::worlds::rdma); })*)* }
        /// In the virtual machine of `cargo xtask test vm`.
        mod rxe { $($(#[test] #[ignore = "needs the devices of the virtual machine: cargo xtask test vm"] fn $property() { super::$module::$property(super::worlds::rxe); })*)* }
        mod rdma_without { $($(#[test] fn $property() { super::$module::$property(super::worlds::rdma_without); })*)* }
    };
}

contract! {
    messages:
        every_size_arrives_whole_in_place_and_as_a_view
        a_key_finds_its_receive_in_any_order
        many_keys_are_in_flight_at_once
        what_nobody_asks_for_holds_up_nothing
        buffers_do_not_grow_with_traffic;
    failures:
        a_cancelled_operation_leaves_memory_alone
        late_messages_of_a_cancelled_operation_are_dropped
        other_fingerprints_are_a_mismatch_once_whoever_begins_first
        two_that_wait_in_different_operations_both_learn_of_it
        a_message_of_another_length_is_an_error_of_its_receiver
        a_peer_that_is_gone_is_lost_once
        who_leaves_is_not_taken_for_a_crash;
    sleeping:
        no_wake_up_is_lost
        nothing_wakes_a_sleeper_for_nothing;
}
