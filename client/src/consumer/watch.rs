//! What monitoring sees of deliveries: a span around the listener, figures, and upstream's traces.

use std::{sync::Arc, time::Duration};

use ringmq_protocol::{headers::DEFAULT_REGION, properties::name};
use tokio::time::Instant;
use tracing::Span;

use super::member::Member;
use crate::{
    ReceivedMessage, clock,
    trace::{Delivered, Ended, Tracer},
};

/// A delivery that the listener works on.
pub(crate) struct Watch {
    pub(crate) started: Instant,
    count: u64,
    traced: Option<Traced>,
}

struct Traced {
    tracer: Arc<Tracer>,
    request_id: String,
    messages: Vec<Delivered>,
}

impl Member {
    /// Begins to watch a delivery; traces of it say that it is about to be consumed.
    pub(crate) fn watch(&self, messages: &[ReceivedMessage]) -> Watch {
        let count = u64::try_from(messages.len()).unwrap_or(u64::MAX);
        let traced = self.settings.tracer.as_ref().and_then(|tracer| {
            // A broker that wants no traces marks its messages.
            let is_wanted = |m: &&ReceivedMessage| m.property(name::TRACE_ON) != Some("false");
            let messages: Vec<_> = messages.iter().filter(is_wanted).map(delivered).collect();
            let request_id = self.client.shared.unique_ids.next(clock::epoch_ms()).to_string();
            (!messages.is_empty()).then(|| {
                tracer.before(&self.shown_group(), &request_id, &messages);
                Traced { tracer: Arc::clone(tracer), request_id, messages }
            })
        });
        Watch { started: Instant::now(), count, traced }
    }

    fn shown_group(&self) -> String {
        self.client.shared.namespace.unwrap(self.group()).into()
    }

    /// A span that names a delivery.
    pub(crate) fn span(&self, messages: &[ReceivedMessage]) -> Span {
        let span = tracing::debug_span!(
            "consume",
            group = self.group(),
            queue = tracing::field::Empty,
            offset = tracing::field::Empty,
            count = messages.len()
        );
        if let Some(first) = messages.first().filter(|_| !span.is_disabled()) {
            span.record("queue", tracing::field::display(first.queue()));
            span.record("offset", first.queue_offset().get());
        }
        span
    }
}

fn delivered(message: &ReceivedMessage) -> Delivered {
    Delivered {
        region: message.property(name::MSG_REGION).unwrap_or(DEFAULT_REGION).into(),
        message_id: message.message_id(),
        keys: message.property(name::KEYS).unwrap_or_default().into(),
        retries: message.reconsume_times(),
    }
}

impl Watch {
    /// Notes how the delivery ended: so many messages are done. `late` is the time from which on a
    /// listener counts as too slow.
    pub(crate) fn end(self, member: &Member, topic: &str, done: u64, how: Ended, late: Duration) {
        let cost = self.started.elapsed();
        let failed = self.count.saturating_sub(done);
        member.stats.count(topic, |sums| {
            sums.consume_ms += u64::try_from(cost.as_millis()).unwrap_or(u64::MAX);
            sums.done += done;
            sums.failed += failed;
        });
        member.figures.consumed(done, failed, cost);
        if let Some(Traced { tracer, request_id, messages }) = self.traced {
            let how = match how {
                Ended::Done | Ended::Failed if late <= cost => Ended::TooLate,
                how => how,
            };
            tracer.after(&member.shown_group(), &request_id, &messages, cost, how);
        }
    }
}
