//! What became of a parcel, for the senders of its messages.
//!
//! All senders of a parcel wait for one outcome, each with a ticket that knows its place. Whoever
//! ships the parcel ends it once; a parcel that is dropped before ends as closed.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use super::SendReceipt;
use crate::{Error, QueueOffset, lock};

/// What the senders of a parcel have in common.
#[derive(Debug)]
enum Outcome {
    /// Who is to be woken, by place.
    Open(Vec<Option<Waker>>),
    Stored(Stored),
    Failed(Error),
}

/// The receipt of a batch.
#[derive(Debug)]
struct Stored {
    receipt: SendReceipt,
    /// Length of each id that the broker gave, if all have the same. Unit: bytes.
    id_len: Option<usize>,
}

/// The side that ends a parcel.
#[derive(Debug)]
pub(super) struct Answering {
    outcome: Arc<Mutex<Outcome>>,
    count: usize,
}

/// The side of one sender. Dropping it changes nothing for the parcel.
#[derive(Debug)]
pub(super) struct Ticket {
    outcome: Arc<Mutex<Outcome>>,
    place: usize,
    message_id: String,
}

impl Default for Answering {
    fn default() -> Self {
        Self { outcome: Arc::new(Mutex::new(Outcome::Open(Vec::new()))), count: 0 }
    }
}

impl Answering {
    /// The ticket for the next message, with its unique id.
    pub(super) fn ticket(&mut self, message_id: String) -> Ticket {
        let place = self.count;
        self.count += 1;
        Ticket { outcome: Arc::clone(&self.outcome), place, message_id }
    }

    /// Messages so far.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Tells all senders.
    pub(super) fn end(self, result: Result<SendReceipt, Error>) {
        self.settle(match result {
            Ok(receipt) => Outcome::Stored(Stored::new(receipt, self.count)),
            Err(error) => Outcome::Failed(error),
        });
    }

    /// Settles what is not settled yet.
    fn settle(&self, settled: Outcome) {
        let mut outcome = lock(&self.outcome);
        if !matches!(&*outcome, Outcome::Open(_)) {
            return;
        }
        let open = std::mem::replace(&mut *outcome, settled);
        drop(outcome);
        if let Outcome::Open(wakers) = open {
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.settle(Outcome::Failed(Error::Closed));
    }
}

impl Stored {
    fn new(receipt: SendReceipt, count: usize) -> Self {
        let ids = &receipt.offset_message_id;
        let len = ids.find(',').unwrap_or(ids.len());
        let is_even = ids.len() + 1 == count * (len + 1)
            && (1..count).all(|place| ids.as_bytes().get(place * (len + 1) - 1) == Some(&b','));
        Self { receipt, id_len: is_even.then_some(len) }
    }

    /// The id that the broker gave to the message at this place. Empty if it gave none.
    fn id(&self, place: usize) -> &str {
        let ids = &self.receipt.offset_message_id;
        match self.id_len {
            Some(len) => ids.get(place * (len + 1)..place * (len + 1) + len),
            None => ids.split(',').nth(place),
        }
        .unwrap_or_default()
    }

    /// The part of the receipt that belongs to the message at this place.
    fn part(&self, place: usize, message_id: String) -> SendReceipt {
        let whole = &self.receipt;
        let offset = i64::try_from(place).unwrap_or(i64::MAX);
        SendReceipt {
            status: whole.status,
            message_id,
            offset_message_id: self.id(place).into(),
            queue: whole.queue.clone(),
            queue_offset: QueueOffset::new(whole.queue_offset.get().saturating_add(offset)),
            recall_handle: whole.recall_handle.clone(),
        }
    }
}

impl Future for Ticket {
    type Output = Result<SendReceipt, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { outcome, place, message_id } = &mut *self;
        match &mut *lock(outcome) {
            Outcome::Stored(stored) => {
                Poll::Ready(Ok(stored.part(*place, std::mem::take(message_id))))
            }
            Outcome::Failed(error) => Poll::Ready(Err(error.again())),
            Outcome::Open(wakers) => {
                if wakers.len() <= *place {
                    wakers.resize(*place + 1, None);
                }
                if let Some(waker) = wakers.get_mut(*place) {
                    match waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        None => *waker = Some(context.waker().clone()),
                    }
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::{MessageQueue, SendStatus};

    fn receipt(ids: &str) -> SendReceipt {
        SendReceipt {
            status: SendStatus::Stored,
            message_id: "first".into(),
            offset_message_id: ids.into(),
            queue: MessageQueue::new("T", "a", 1),
            queue_offset: QueueOffset::new(7),
            recall_handle: None,
        }
    }

    #[track_caller]
    fn check(ids: &str, want: [&str; 3]) {
        let mut answering = Answering::default();
        let tickets = ["x", "y", "z"].map(|id| answering.ticket(id.into()));
        answering.end(Ok(receipt(ids)));
        let parts = tickets.map(|ticket| ticket.now_or_never().unwrap().unwrap());
        assert_eq!(parts.each_ref().map(|part| &*part.offset_message_id), want);
        assert_eq!(parts.each_ref().map(|part| &*part.message_id), ["x", "y", "z"]);
        assert_eq!(parts.map(|part| part.queue_offset.get()), [7, 8, 9]);
    }

    #[test]
    fn each_message_has_its_part_of_the_receipt() {
        check("aa,bb,cc", ["aa", "bb", "cc"]);
        check("a,bb,ccc", ["a", "bb", "ccc"]);
        check("aaa,b,cc", ["aaa", "b", "cc"]);
        check("aa,bb", ["aa", "bb", ""]);
        check("only", ["only", "", ""]);
        check("", ["", "", ""]);
    }

    #[test]
    fn a_parcel_that_is_dropped_ends_as_closed() {
        let mut answering = Answering::default();
        let mut ticket = answering.ticket("x".into());
        assert!((&mut ticket).now_or_never().is_none());
        drop(answering);
        assert!(matches!(ticket.now_or_never(), Some(Err(Error::Closed))));
    }
}
