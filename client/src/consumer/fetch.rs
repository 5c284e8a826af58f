//! Pulling a held queue: one pull after the other, each held by the broker until messages come.
//!
//! As long as a queue is known to have more, and its pulls come full, a few are on their way at once,
//! each beginning where the one before it ends: with one alone, broker and client would take turns in
//! waking each other. One that does not come full makes those behind it worthless, and they are asked
//! anew.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQPushConsumerImpl.pullMessage`; the pulls ahead are ours.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesOrdered};
use ringmq_protocol::codes::response;
use tokio::time::{Instant, sleep};

use super::{
    held::Held,
    member::Member,
    request::{Ask, Pulled},
};
use crate::{Error, QueueOffset, clock};

/// Pause after a failed pull. Source: as above, `pullTimeDelayMillsWhenException`.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the broker said that it is asked too fast. Source: as above,
/// `PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL`.
const FLOW_CONTROL_PAUSE: Duration = Duration::from_millis(20);

/// Pause after an empty answer that came at once although the broker should have held it, so that
/// such a broker is not asked in a tight loop.
const EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// Most pulls of one queue that are on their way at once.
const PULLS_MAX: usize = 4;

/// What became of a pull.
struct Outcome {
    from: QueueOffset,
    asked: Instant,
    pulled: Result<Pulled, Error>,
}

/// What the pulling of a queue does next.
enum Next {
    /// The queue is known to end there.
    GoOn(QueueOffset),
    /// Nothing of what comes behind counts.
    StartOver,
    /// The queue goes on at another offset.
    MoveTo(QueueOffset),
}

/// Pulls until the queue is dropped, which aborts this.
pub(super) async fn run(member: Arc<Member>, held: Arc<Held>) {
    let mut pulls = FuturesOrdered::new();
    // Where the next pull begins, and where the queue is known to end.
    let (mut from, mut end) = (QueueOffset::new(0), QueueOffset::new(0));
    loop {
        if pulls.is_empty() {
            held.room(|held| may_pull(&member, held, 0)).await;
            from = held.with(|backlog| backlog.end());
            pulls.push_back(pull(&member, &held, from));
            from = behind(&member, from);
        }
        while pulls.len() < pulls_max(&member)
            && behind(&member, from) <= end
            && may_pull(&member, &held, pulls.len())
        {
            pulls.push_back(pull(&member, &held, from));
            from = behind(&member, from);
        }
        let Some(outcome) = pulls.next().await else { continue };
        match take(&member, &held, outcome).await {
            Next::GoOn(known) => end = known,
            Next::StartOver => {
                pulls.clear();
                end = QueueOffset::new(0);
            }
            Next::MoveTo(offset) => return member.move_to(&held, offset),
        }
    }
}

/// Where a pull ends that comes full.
fn behind(member: &Member, from: QueueOffset) -> QueueOffset {
    QueueOffset::new(from.get().saturating_add(member.settings.pull_count_max.into()))
}

/// Most pulls that are on their way at once.
const fn pulls_max(member: &Member) -> usize {
    if member.settings.pull_pause.is_zero() { PULLS_MAX } else { 1 }
}

/// Whether one more may be pulled while so many pulls are on their way.
fn may_pull(member: &Member, held: &Held, pulls: usize) -> bool {
    let is_open = !member.is_paused() && !held.is_paused();
    let limits = member.limits();
    let coming = pulls.saturating_mul(usize::try_from(member.settings.pull_count_max).unwrap_or(0));
    is_open
        && (!member.has_locks() || held.is_locked())
        && held.with(|backlog| backlog.has_room(&limits, coming))
}

/// Pulls once.
async fn pull(member: &Member, held: &Held, from: QueueOffset) -> Outcome {
    let asked = Instant::now();
    held.marks.pulled_ms.store(clock::epoch_ms(), Ordering::Relaxed);
    let Some(subscription) = member.subscription(held.queue.topic()) else {
        // The next division gives the queue up.
        sleep(FAILURE_PAUSE).await;
        let pulled = Ok(Pulled::nothing(from));
        return Outcome { from, asked, pulled };
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
    let pulled = member.client.shared.pull(&ask).await;
    Outcome { from, asked, pulled }
}

/// Takes what a pull brought.
async fn take(member: &Member, held: &Arc<Held>, outcome: Outcome) -> Next {
    let Outcome { from, asked, pulled } = outcome;
    let pulled = match pulled {
        Ok(pulled) => pulled,
        Err(error) => {
            failed(member, held, error).await;
            return Next::StartOver;
        }
    };
    held.broker_id.store(pulled.broker_id, Ordering::Relaxed);
    if pulled.is_moved {
        let (from, to) = (from.get(), pulled.next_offset.get());
        tracing::warn!(group = member.group(), queue = %held.queue, from, to, "not in the queue");
        return Next::MoveTo(pulled.next_offset);
    }
    let known = pulled.max_offset;
    add(member, held, pulled, asked);
    let end = held.with(|backlog| backlog.end());
    if end <= from {
        if asked.elapsed() < EMPTY_PAUSE {
            sleep(EMPTY_PAUSE).await;
        }
    } else if !member.settings.pull_pause.is_zero() {
        sleep(member.settings.pull_pause).await;
    }
    if end == behind(member, from) { Next::GoOn(known) } else { Next::StartOver }
}

/// Hands pulled messages on.
fn add(member: &Member, held: &Arc<Held>, pulled: Pulled, asked: Instant) {
    let mut messages = pulled.messages;
    if !messages.is_empty() {
        let (count, millis) = (messages.len(), asked.elapsed().as_millis());
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
