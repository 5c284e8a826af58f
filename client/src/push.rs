//! Push consumers: the client pulls, and hands messages to a listener.
//!
//! All members of a group share the queues of its topics, or in broadcasting each gets all of them.
//! Messages are delivered at least once: again after a crash, when a queue changes hands while its
//! messages are worked on, and when the listener says so. In a shutdown in good order nothing comes
//! twice.
//!
//! Elsewhere: the rules of a group are in `consumer`, listeners in `listener`, what runs them in
//! `concurrent` and `ordered`.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Error, Filter, Invalid, MessageQueue, QueueOffset,
    consumer::{Member, member::check_topic},
    subscription::Subscription,
};

mod builder;
mod concurrent;
mod listener;
mod ordered;

pub use builder::PushConsumerBuilder;
pub(crate) use listener::guarded;
pub use listener::{Delivery, Listener, OrderedListener, OrderedVerdict, Verdict};

/// A member of a consumer group whose messages go to a listener. Made by
/// [`Client::push_consumer`](crate::Client::push_consumer).
///
/// Dropping it stops it at once: what is in the listener's hands is cut off and comes again. For a
/// good end see [`PushConsumer::shutdown`].
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// use ringmq_client::Delivery;
///
/// let consumer = client
///     .push_consumer("billing")
///     .subscribe("Orders", "created || paid")
///     .start(|delivery: Delivery| async move {
///         for message in delivery {
///             println!("{}: {:?}", message.message_id(), message.body());
///         }
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
pub struct PushConsumer {
    member: Arc<Member>,
    desk: Option<Box<dyn Drain>>,
}

/// What runs the listener, and can be brought to an end.
trait Drain: Send + Sync {
    /// Lets the listener finish what it has; false if the time was over before.
    fn drain(self: Box<Self>, until: Instant) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

impl std::fmt::Debug for PushConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushConsumer").field("group", &self.member.group()).finish_non_exhaustive()
    }
}

impl PushConsumer {
    /// Subscribes to one more topic, or to other messages of one. The other members of the group
    /// have to do the same.
    ///
    /// # Errors
    ///
    /// [`Invalid::Topic`] or [`Invalid::TagExpression`].
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PushConsumer) -> Result<(), ringmq_client::Error> {
    /// consumer.subscribe("Refunds", "*")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, topic: &str, filter: impl Into<Filter>) -> Result<(), Error> {
        check_topic(topic)?;
        let topic = self.member.client.shared.namespace.wrap(topic);
        self.member.subscribe(&topic, Subscription::new(filter.into())?);
        Ok(())
    }

    /// Gives the queues of a topic up.
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PushConsumer) {
    /// consumer.unsubscribe("Refunds");
    /// # }
    /// ```
    pub fn unsubscribe(&self, topic: &str) {
        self.member.unsubscribe(&self.member.client.shared.namespace.wrap(topic));
    }

    /// Stops pulling. What has been pulled still goes to the listener, and the queues are kept.
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PushConsumer) {
    /// consumer.pause();
    /// # }
    /// ```
    pub fn pause(&self) {
        self.member.pause(true);
    }

    /// Goes on after [`PushConsumer::pause`].
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PushConsumer) {
    /// consumer.resume();
    /// # }
    /// ```
    pub fn resume(&self) {
        self.member.pause(false);
    }

    /// The queues that this member holds now, each with the offset of its first message which is
    /// not done.
    ///
    /// ```no_run
    /// # fn example(consumer: ringmq_client::PushConsumer) {
    /// for (queue, offset) in consumer.queues() {
    ///     println!("{queue} is done up to {offset}");
    /// }
    /// # }
    /// ```
    pub fn queues(&self) -> Vec<(MessageQueue, QueueOffset)> {
        self.member.shown_queues()
    }

    /// Ends in good order: stops pulling, lets the listener finish what it has in its hands,
    /// commits, gives locks back and leaves the group. What was pulled but not begun goes to other
    /// members.
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`] if the listener was not done by the deadline: its messages come again.
    /// Or why an offset could not be committed.
    ///
    /// ```no_run
    /// # async fn example(consumer: ringmq_client::PushConsumer)
    /// # -> Result<(), ringmq_client::Error> {
    /// consumer.shutdown(std::time::Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(mut self, deadline: Duration) -> Result<(), Error> {
        let until = Instant::now() + deadline;
        self.member.stop_pulling();
        let is_drained = match self.desk.take() {
            Some(desk) => desk.drain(until).await,
            None => true,
        };
        // Offsets of what is done are worth some time, even if the listener has used all of it.
        let until = until.max(Instant::now() + LEAVE_TIME_MIN);
        let left = self.member.leave(until).await;
        if is_drained { left } else { Err(Error::Unfinished { deadline }) }
    }
}

/// Time for the last commit and for leaving, whatever the deadline.
const LEAVE_TIME_MIN: Duration = Duration::from_secs(1);

impl Drop for PushConsumer {
    fn drop(&mut self) {
        self.member.abandon();
    }
}

/// Checks a setting that has a range.
fn check_range(name: &'static str, value: u64, max: u64) -> Result<(), Invalid> {
    match value {
        1.. if value <= max => Ok(()),
        _ => Err(Invalid::Setting { name, max }),
    }
}
