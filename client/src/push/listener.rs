//! Listeners: the application's part of a push consumer.

use std::{
    fmt,
    future::{Future, poll_fn},
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    time::Duration,
};

use crate::{MessageQueue, ReceivedMessage};

/// Messages that a listener is to work on: of one queue, in its order, at least one. Normally it is
/// exactly one, see [`PushConsumerBuilder::batch`](crate::PushConsumerBuilder::batch).
///
/// It can be used like a slice, or taken apart with a loop.
#[derive(Clone, Debug)]
pub struct Delivery {
    messages: Vec<ReceivedMessage>,
}

impl Delivery {
    pub(crate) const fn new(messages: Vec<ReceivedMessage>) -> Self {
        Self { messages }
    }

    /// The queue that the messages come from. That of messages which come again is one of the
    /// group's retry topic.
    ///
    /// # Panics
    ///
    /// Never: there is a message.
    pub fn queue(&self) -> &MessageQueue {
        self.messages.first().expect("a delivery has a message").queue()
    }
}

impl Deref for Delivery {
    type Target = [ReceivedMessage];

    fn deref(&self) -> &[ReceivedMessage] {
        &self.messages
    }
}

impl IntoIterator for Delivery {
    type Item = ReceivedMessage;
    type IntoIter = std::vec::IntoIter<ReceivedMessage>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.into_iter()
    }
}

impl<'a> IntoIterator for &'a Delivery {
    type Item = &'a ReceivedMessage;
    type IntoIter = std::slice::Iter<'a, ReceivedMessage>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.iter()
    }
}

/// What became of a delivery.
///
/// `()` counts as [`Verdict::Done`], and so does `Ok`; an error is logged and counts as
/// [`Verdict::Retry`], as does a panic of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// All messages are done.
    Done,
    /// The first so many messages are done, the others come again.
    DoneFirst(usize),
    /// The messages come again, later and later: after 10 s, 30 s, 1 min and so on to 2 h with the
    /// broker's default levels. After 16 deliveries, unless set, they go to the dead letters.
    Retry,
    /// The messages come again after the delay of this level: 1 to 18 are 1 s, 5 s, 10 s, 30 s,
    /// 1 to 10 min, 20 min, 30 min, 1 h and 2 h, unless the broker has other ones.
    RetryAt(i32),
    /// The messages go to the dead letters at once (topic `%DLQ%` and the group).
    DeadLetter,
}

impl From<()> for Verdict {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Verdict {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(error) => {
                tracing::warn!(%error, "a message was not consumed and comes again");
                Self::Retry
            }
        }
    }
}

/// Works on messages, many at a time and in no order. Closures that return a future of something
/// that a [`Verdict`] can be made of are listeners.
///
/// ```
/// use ringmq_client::{Delivery, Listener, Verdict};
///
/// struct Ledger;
///
/// impl Listener for Ledger {
///     async fn consume(&self, delivery: Delivery) -> Verdict {
///         for message in &delivery {
///             println!("{}", message.message_id());
///         }
///         Verdict::Done
///     }
/// }
/// ```
pub trait Listener: Send + Sync + 'static {
    /// Works on a delivery. Dropped half way only when the consumer's shutdown runs out of time;
    /// the messages then come again.
    fn consume(&self, delivery: Delivery) -> impl Future<Output = Verdict> + Send;
}

impl<F, R> Listener for F
where
    F: Fn(Delivery) -> R + Send + Sync + 'static,
    R: Future + Send,
    R::Output: Into<Verdict>,
{
    async fn consume(&self, delivery: Delivery) -> Verdict {
        // The output need not be `Send` as long as it is not held over an await.
        self(delivery).await.into()
    }
}

/// What became of a delivery whose queue is read in order.
///
/// `()` counts as [`OrderedVerdict::Done`], and so does `Ok`; an error is logged and counts as
/// [`OrderedVerdict::Suspend`], as does a panic of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderedVerdict {
    /// The messages are done, and with them those that were held before.
    Done,
    /// The messages were worked on, but are not to be committed yet: not before a later delivery of
    /// the queue is [`OrderedVerdict::Done`].
    Hold,
    /// These messages, and those that were held before, come again after a pause.
    Rollback,
    /// The messages come again, ahead of those behind them, after a pause of 1 s unless set. There
    /// is no bound on how often, unless set.
    Suspend,
    /// As `Suspend`, after this pause: at least 10 ms, at most 30 s.
    SuspendFor(Duration),
    /// The messages go to the dead letters, and the queue goes on behind them.
    DeadLetter,
}

impl From<()> for OrderedVerdict {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for OrderedVerdict {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(error) => {
                tracing::warn!(%error, "a message was not consumed and comes again");
                Self::Suspend
            }
        }
    }
}

/// Works on messages in the order of each queue: a queue's next delivery comes when the one before
/// it is done. Queues don't wait for each other. Closures that return a future of something that an
/// [`OrderedVerdict`] can be made of are listeners.
///
/// ```
/// use ringmq_client::{Delivery, OrderedListener, OrderedVerdict};
///
/// struct Account;
///
/// impl OrderedListener for Account {
///     async fn consume(&self, delivery: Delivery) -> OrderedVerdict {
///         println!("{}: {} messages", delivery.queue(), delivery.len());
///         OrderedVerdict::Done
///     }
/// }
/// ```
pub trait OrderedListener: Send + Sync + 'static {
    /// Works on a delivery, as [`Listener::consume`].
    fn consume(&self, delivery: Delivery) -> impl Future<Output = OrderedVerdict> + Send;
}

impl<F, R> OrderedListener for F
where
    F: Fn(Delivery) -> R + Send + Sync + 'static,
    R: Future + Send,
    R::Output: Into<OrderedVerdict>,
{
    async fn consume(&self, delivery: Delivery) -> OrderedVerdict {
        self(delivery).await.into()
    }
}

/// Runs a listener; `Err` with what it said if it panics.
pub(crate) async fn guarded<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        // The future is not polled again after a panic, so that nothing sees it half changed.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic_text(&*panic))),
        }
    })
    .await
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_verdicts() {
        assert_eq!(Verdict::from(()), Verdict::Done);
        assert_eq!(Verdict::from(Ok::<_, String>(7)), Verdict::Done);
        assert_eq!(Verdict::from(Err::<(), _>("no")), Verdict::Retry);
        assert_eq!(OrderedVerdict::from(()), OrderedVerdict::Done);
        assert_eq!(OrderedVerdict::from(Err::<(), _>("no")), OrderedVerdict::Suspend);
    }

    #[tokio::test]
    async fn a_panic_is_caught_with_its_text() {
        let panics = async {
            tokio::task::yield_now().await;
            panic!("boom {}", 7)
        };
        assert_eq!(guarded::<()>(panics).await, Err("boom 7".into()));
        assert_eq!(guarded(async { 7 }).await, Ok(7));
    }
}
