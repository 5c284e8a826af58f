//! The client's test suite, against a broker named by address.
//!
//! ```text
//! cargo test -p ringmq-tests --test client_suite                 # against a RingMQ of its own
//! RINGMQ_TEST_NAMESRV=127.0.0.1:9876 RINGMQ_TEST_EXPECT=apache-5.5.0 \
//!     cargo test -p ringmq-tests --test client_suite [-- NAME]   # against any cluster
//! ```
//!
//! The cluster has to create topics by itself. What it is known to lack is listed, one case a line,
//! in `expected/NAME.txt` beside this file; a listed case that passes fails the run, so that the
//! list stays true. Each case uses topics and groups of its own, so that many run at once and the
//! cluster needs no cleaning.

#![expect(clippy::unwrap_used, reason = "what fails in a case fails the case")]
#![expect(clippy::indexing_slicing, reason = "what is missing in a case fails the case")]
#![expect(clippy::print_stdout, reason = "this is a test runner")]

mod context;
mod groups;
mod harness;
mod popping;
mod pulling;
mod retries;
mod sending;

use harness::{Case, case};

/// All cases.
fn cases() -> Vec<Case> {
    vec![
        case("what_is_sent_is_received_once_and_in_order", sending::round_trip),
        case("a_topic_is_created_by_its_first_message", sending::auto_create),
        case("a_held_pull_is_woken_by_a_message_of_its_tag", pulling::held_pull),
        case("an_empty_queue_answers_when_its_hold_is_over", pulling::empty_hold),
        case("offsets_are_what_brokers_say", pulling::offsets),
        case("a_message_is_found_by_its_offset_id", sending::offset_id),
        case("limits_are_the_brokers_too", sending::limits),
        case("many_sends_share_one_connection", sending::many),
        case("a_pull_consumer_seeks_pauses_and_polls", pulling::seek_and_pause),
        case("messages_are_a_stream", pulling::as_stream),
        case("assigned_queues_can_be_exchanged", pulling::assign),
        case("pull_consumers_share_the_queues_of_a_topic", pulling::shared),
        case("a_push_consumer_gets_everything_once", groups::push),
        case("a_consumer_starts_first_last_or_at_a_time", groups::starts),
        case("tags_choose_messages", groups::tags),
        case("sql_chooses_messages", groups::sql),
        case("ordered_queues_come_in_order_and_wait_for_failures", groups::ordered),
        case("two_members_share_and_one_takes_over", groups::take_over),
        case("ordered_members_never_overlap", groups::ordered_take_over),
        case("broadcasting_members_all_get_everything", groups::broadcasting),
        case("a_stop_in_good_order_repeats_nothing", groups::graceful),
        case("a_crash_loses_nothing", groups::crash),
        case("a_paused_consumer_gets_nothing", groups::pause),
        case("a_failed_message_comes_again_from_the_retry_topic", retries::retry),
        case("a_failed_message_comes_again_to_somebody", retries::somewhere),
        case("a_dead_letter_is_kept", retries::dead_letter),
        case("a_message_that_always_fails_becomes_a_dead_letter", retries::too_often),
        case("an_ordered_dead_letter_lets_its_queue_go_on", retries::ordered_dead_letter),
        case("a_delayed_message_comes_later", retries::delayed),
        case("popped_messages_come_once_when_acknowledged", popping::acknowledged),
        case("what_is_not_acknowledged_comes_again", popping::again),
        case("a_time_out_of_sight_can_be_changed", popping::changed),
        case("a_listener_pops_and_fails_and_gets_it_again", popping::listener),
    ]
}

fn main() {
    std::process::exit(harness::run(cases()));
}
