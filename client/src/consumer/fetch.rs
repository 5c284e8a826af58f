//! Pulling a held queue: one pull after the other, each held by the broker until messages come.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.pullMessage`.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ringmq_protocol::codes::response;
use tokio::time::{Instant, sleep};

use super::{held::Held, member::Member, request::Ask};
use crate::{Error, QueueOffset, clock};

/// Pause after a failed pull. Source: as above, `pullTimeDelayMillsWhenException`.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the broker said that it is asked too fast. Source: as above,
/// `PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL`.
const FLOW_CONTROL_PAUSE: Duration = Duration::from_millis(20);

/// Pause after an empty answer that came at once although the broker should have held it, so that
/// such a broker is not asked in a tight loop.
const EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// Pulls until the queue is dropped, which aborts this.
pub(super) async fn run(member: Arc<Member>, held: Arc<Held>) {
    loop {
        held.room(|held| may_pull(&member, held)).await;
        let asked = Instant::now();
        held.marks.pulled_ms.store(clock::epoch_ms(), Ordering::Relaxed);
        let from = held.with(|backlog| backlog.end());
        match pull(&member, &held, from).await {
            Ok(Some(moved)) => return member.move_to(&held, moved),
            Ok(None) if from < held.with(|backlog| backlog.end()) => {
                if !member.settings.pull_pause.is_zero() {
                    sleep(member.settings.pull_pause).await;
                }
            }
            Ok(None) if asked.elapsed() < EMPTY_PAUSE => sleep(EMPTY_PAUSE).await,
            Ok(None) => {}
            Err(error) => failed(&member, &held, error).await,
        }
    }
}

fn may_pull(member: &Member, held: &Held) -> bool {
    let is_open = !member.is_paused() && !held.is_paused();
    let limits = member.limits();
    is_open
        && (!member.has_locks() || held.is_locked())
        && held.with(|backlog| backlog.has_room(&limits))
}

/// Pulls once. Gives the offset to go on at if the one asked for is not in the queue.
async fn pull(
    member: &Member,
    held: &Arc<Held>,
    from: QueueOffset,
) -> Result<Option<QueueOffset>, Error> {
    let Some(subscription) = member.subscription(held.queue.topic()) else {
        // The next division gives the queue up.
        sleep(FAILURE_PAUSE).await;
        return Ok(None);
    };
    let ask = Ask {
        group: member.group(),
        queue: &held.queue,
        from,
        count_max: member.settings.pull_count_max,
        hold: member.settings.hold,
        subscription: &subscription,
        broker_id: held.broker_id.load(Ordering::Relaxed),
    };
    let started = Instant::now();
    let pulled = member.client.shared.pull(&ask).await?;
    held.broker_id.store(pulled.broker_id, Ordering::Relaxed);
    if pulled.is_moved {
        let (from, to) = (from.get(), pulled.next_offset.get());
        tracing::warn!(group = member.group(), queue = %held.queue, from, to, "not in the queue");
        return Ok(Some(pulled.next_offset));
    }
    let mut messages = pulled.messages;
    if !messages.is_empty() {
        let (count, millis) = (messages.len(), started.elapsed().as_millis());
        member.stats.count(held.queue.topic(), |sums| {
            sums.pulls += 1;
            sums.pulled += u64::try_from(count).unwrap_or(u64::MAX);
            sums.pull_ms += u64::try_from(millis).unwrap_or(u64::MAX);
        });
        member.figures.pulled(count);
        messages.iter_mut().for_each(crate::ReceivedMessage::show_first_topic);
    }
    let count = held.change(|backlog| backlog.add(messages, pulled.next_offset));
    if count > 0 {
        member.sink.arrived(held, count);
    }
    Ok(None)
}

/// Waits after a failure, and tells the application if it will not pass by itself.
async fn failed(member: &Member, held: &Held, error: Error) {
    let pause = match error.code() {
        Some(response::FLOW_CONTROL) => FLOW_CONTROL_PAUSE,
        _ => FAILURE_PAUSE,
    };
    let is_unknown = |code| {
        matches!(
            code,
            response::SUBSCRIPTION_NOT_EXIST
                | response::SUBSCRIPTION_NOT_LATEST
                | response::SUBSCRIPTION_GROUP_NOT_EXIST
                | response::FILTER_DATA_NOT_EXIST
                | response::FILTER_DATA_NOT_LATEST
        )
    };
    if error.code().is_some_and(is_unknown) {
        // The broker has forgotten this client, or not heard of it yet.
        member.client.shared.groups.request_heartbeat();
    }
    tracing::debug!(group = member.group(), queue = %held.queue, %error, "pull failed");
    if !error.retry_can_help() {
        member.sink.failed(error);
    }
    sleep(pause).await;
}
