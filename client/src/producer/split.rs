//! Many messages as batches that brokers take.

use crate::Message;

/// Splits messages into batches of at most `len_max` bytes, in their order. A message that is longer
/// makes a batch of its own. Upstream advises to keep batches below 1 MiB.
///
/// Lengths are estimates, a little above what is sent: topic, body, properties, and 84 bytes for the
/// id and the frame of each message.
///
/// ```
/// use ringmq_client::{Message, split};
///
/// let lines = (0..100).map(|n| Message::new("Lines", n.to_string()));
/// let batches: Vec<_> = split(lines, 1000).collect();
/// assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 100);
/// assert!(batches.len() > 1);
/// ```
///
/// # Source
///
/// Apache RocketMQ 4.9.8, example `SplitBatchProducer`.
pub fn split(
    messages: impl IntoIterator<Item = Message>,
    len_max: usize,
) -> impl Iterator<Item = Vec<Message>> {
    let mut messages = messages.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut len = 0_usize;
        let mut batch = Vec::new();
        let fits = |len: usize, message: &Message, batch: &Vec<Message>| {
            batch.is_empty() || len.saturating_add(message.len_estimate()) <= len_max
        };
        while let Some(message) = messages.next_if(|message| fits(len, message, &batch)) {
            len = len.saturating_add(message.len_estimate());
            batch.push(message);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(bodies: &[usize], len_max: usize) -> Vec<usize> {
        let messages = bodies.iter().map(|len| Message::new("T", vec![0; *len]));
        split(messages, len_max).map(|batch| batch.len()).collect()
    }

    #[test]
    fn batches_are_as_long_as_they_may_be() {
        let each = Message::new("T", vec![0; 100]).len_estimate();
        assert_eq!(lens(&[100; 10], 3 * each), [3, 3, 3, 1]);
        assert_eq!(lens(&[100; 10], 3 * each - 1), [2; 5]);
        assert_eq!(lens(&[], 100), [0; 0]);
    }

    #[test]
    fn a_message_that_is_too_long_for_any_batch_is_alone() {
        assert_eq!(lens(&[1, 10_000, 1, 1], 1000), [1, 1, 2]);
        assert_eq!(lens(&[1, 1], 0), [1, 1]);
    }
}
