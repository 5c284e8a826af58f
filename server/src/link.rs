//! Hand-over between data threads: a request goes to the thread that owns the shard, its answer
//! comes back.
//!
//! For each ordered pair of threads there is a ring of requests and a ring of answers, both of the
//! same bounded length. A request takes a credit, and there are as many credits as the answer ring
//! has slots, so sending reserves the slot of the answer: neither side ever waits to put, and two
//! threads that hand over to each other cannot lock up. The credit comes back when the asking thread
//! takes the answer out. Whoever finds no credit waits in line for it, first come, first served; the
//! connection is not read meanwhile, and nothing is copied into a queue without bound.
//!
//! A request that waits for a message (a held pull) must not sit on its credit. It is answered at
//! once, and what it waits for is reported later by a *nudge*: a number in a list that holds each
//! number at most once per wait, so its length is bounded by the waits that exist.
//!
//! A thread that has nothing to do says so in its `sleeping` flag, then looks once more; a thread that
//! has put something looks at the flag afterwards. A full fence on both sides between the write and
//! the look makes sure that at least one of them sees the other.
//!
//! Invariant: answers in the ring + requests in the ring + requests being worked on = credits taken.

use std::{
    cell::Cell,
    fmt, mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use crossbeam_queue::ArrayQueue;
use tokio::sync::{Notify, Semaphore};

/// Fewest ring entries that a configuration may ask for.
pub(crate) const ENTRIES_MIN: usize = 1;

/// Most ring entries that a configuration may ask for.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// What wakes a thread that sleeps.
struct Bell {
    /// Set by the thread itself before it sleeps; cleared by whoever rings, or by itself.
    sleeping: AtomicBool,
    /// Rung at most once per sleep.
    notify: Notify,
}

/// One direction between two threads.
struct Pair<Q, A> {
    /// Put by the asking thread, taken by the serving one.
    requests: ArrayQueue<Q>,
    /// Put by the serving thread, taken by the asking one.
    answers: ArrayQueue<A>,
    /// Put by the serving thread, taken by the asking one.
    nudges: Mutex<Vec<u64>>,
    /// One per answer slot. Taken and given back by the asking thread only.
    credits: Semaphore,
}

/// A thread's end of a pair; `None` between a thread and itself.
type End<Q, A> = Option<Arc<Pair<Q, A>>>;

/// The right to put one request, and the slot of its answer. Dropped unused, it goes back.
pub(crate) struct Credit<'a> {
    credits: &'a Semaphore,
    to: usize,
}

impl Credit<'_> {
    /// Keeps the credit taken; [`Links::kept`] makes it a value again.
    pub(crate) fn keep(self) -> usize {
        let to = self.to;
        mem::forget(self);
        to
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        self.credits.add_permits(1);
    }
}

impl fmt::Debug for Credit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credit").field("to", &self.to).finish_non_exhaustive()
    }
}

/// One thread's ends of all pairs. `Q` is a request, `A` an answer.
pub(crate) struct Links<Q, A> {
    me: usize,
    bells: Arc<[Bell]>,
    /// Pairs in which this thread asks, by serving thread; `None` for itself.
    asks: Vec<End<Q, A>>,
    /// Pairs in which this thread serves, by asking thread; `None` for itself.
    serves: Vec<End<Q, A>>,
    /// Threads that were given something since the last [`Links::ring`].
    touched: Vec<Cell<bool>>,
}

impl<Q, A> fmt::Debug for Links<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("me", &self.me).finish_non_exhaustive()
    }
}

/// Connects `threads` threads with each other, `entries` requests outstanding per ordered pair.
/// The result has one element per thread, to be moved there.
///
/// # Panics
///
/// If `entries` is 0.
pub(crate) fn mesh<Q, A>(threads: usize, entries: usize) -> Vec<Links<Q, A>> {
    assert!(ENTRIES_MIN <= entries, "a ring without entries carries nothing");
    let bells: Arc<[Bell]> = (0..threads)
        .map(|_| Bell { sleeping: AtomicBool::new(false), notify: Notify::new() })
        .collect();
    let pairs: Vec<Vec<End<Q, A>>> = (0..threads)
        .map(|from| {
            (0..threads).map(|to| (from != to).then(|| Arc::new(Pair::new(entries)))).collect()
        })
        .collect();
    (0..threads)
        .map(|me| Links {
            me,
            bells: bells.clone(),
            asks: pairs.get(me).cloned().unwrap_or_default(),
            serves: pairs.iter().map(|row| row.get(me).cloned().flatten()).collect(),
            touched: vec![Cell::new(false); threads],
        })
        .collect()
}

impl<Q, A> Pair<Q, A> {
    fn new(entries: usize) -> Self {
        Self {
            requests: ArrayQueue::new(entries),
            answers: ArrayQueue::new(entries),
            nudges: Mutex::new(Vec::new()),
            credits: Semaphore::new(entries),
        }
    }
}

impl<Q, A> Links<Q, A> {
    /// How many threads there are, this one included.
    pub(crate) fn threads(&self) -> usize {
        self.bells.len()
    }

    fn asking(&self, to: usize) -> &Pair<Q, A> {
        self.asks.get(to).and_then(Option::as_deref).expect("another thread of the mesh")
    }

    fn serving(&self, from: usize) -> &Pair<Q, A> {
        self.serves.get(from).and_then(Option::as_deref).expect("another thread of the mesh")
    }

    /// A credit for `to`, if one is free and nobody waits in line.
    pub(crate) fn try_credit(&self, to: usize) -> Option<Credit<'_>> {
        let credits = &self.asking(to).credits;
        credits.try_acquire().ok()?.forget();
        Some(Credit { credits, to })
    }

    /// Waits in line for a credit for `to`.
    pub(crate) async fn credit(&self, to: usize) -> Credit<'_> {
        let credits = &self.asking(to).credits;
        credits.acquire().await.expect("credits are never closed").forget();
        Credit { credits, to }
    }

    /// The credit that [`Credit::keep`] kept.
    pub(crate) fn kept(&self, to: usize) -> Credit<'_> {
        Credit { credits: &self.asking(to).credits, to }
    }

    /// Hands a request over. Its thread is woken by the next [`Links::ring`].
    ///
    /// # Panics
    ///
    /// If more requests are outstanding than there are credits, which is a bug in this module.
    pub(crate) fn ask(&self, credit: Credit<'_>, request: Q) {
        let to = credit.keep();
        let put = self.asking(to).requests.push(request);
        assert!(put.is_ok(), "a request was put without a credit");
        self.touch(to);
    }

    /// The next request from `from`. Each must be answered exactly once.
    pub(crate) fn next_request(&self, from: usize) -> Option<Q> {
        self.serving(from).requests.pop()
    }

    /// Answers a request of `to`. Never waits: the request reserved the slot.
    ///
    /// # Panics
    ///
    /// If a request is answered twice, which is a bug of the caller.
    pub(crate) fn answer(&self, to: usize, answer: A) {
        let put = self.serving(to).answers.push(answer);
        assert!(put.is_ok(), "an answer was put whose request had no credit");
        self.touch(to);
    }

    /// Reports to `to` that what it waited for under this number has come.
    pub(crate) fn nudge(&self, to: usize, token: u64) {
        self.serving(to).nudges.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        self.touch(to);
    }

    /// Takes what `from` has sent back: all nudges into `nudges`, then all answers into `take`.
    ///
    /// The order matters: an answer that was put before a nudge is seen before the nudge is acted
    /// upon, since the nudges are taken out first and acted upon last.
    pub(crate) fn collect(&self, from: usize, nudges: &mut Vec<u64>, mut take: impl FnMut(A)) {
        let pair = self.asking(from);
        nudges.append(&mut pair.nudges.lock().unwrap_or_else(PoisonError::into_inner));
        let mut freed = 0;
        while let Some(answer) = pair.answers.pop() {
            freed += 1;
            take(answer);
        }
        if freed > 0 {
            pair.credits.add_permits(freed);
        }
    }

    fn touch(&self, thread: usize) {
        if let Some(touched) = self.touched.get(thread) {
            touched.set(true);
        }
    }

    /// Wakes every thread that was given something since the last call and sleeps.
    pub(crate) fn ring(&self) {
        for (thread, touched) in self.touched.iter().enumerate() {
            if touched.replace(false)
                && let Some(bell) = self.bells.get(thread)
            {
                bell.ring();
            }
        }
    }

    /// Whether every request of this thread has been answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asks
            .iter()
            .flatten()
            .all(|pair| pair.credits.available_permits() == pair.answers.capacity())
    }

    /// Whether anything waits to be taken by this thread.
    pub(crate) fn has_input(&self) -> bool {
        let requests = self.serves.iter().flatten().any(|pair| !pair.requests.is_empty());
        requests
            || self.asks.iter().flatten().any(|pair| {
                !pair.answers.is_empty()
                    || !pair.nudges.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            })
    }

    /// Announces that this thread is about to sleep. `false`: something has come, do not sleep.
    /// `true`: sleep by awaiting [`Links::rung`].
    pub(crate) fn may_sleep(&self) -> bool {
        let Some(bell) = self.bells.get(self.me) else { return false };
        bell.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Bell::ring`: either the other thread sees the flag, or this one
        // sees what the other has put.
        fence(Ordering::SeqCst);
        if self.has_input() {
            bell.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Says that this thread takes what comes without being rung for.
    pub(crate) fn wake(&self) {
        if let Some(bell) = self.bells.get(self.me) {
            bell.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Ready when another thread has rung since the last time this was ready.
    pub(crate) async fn rung(&self) {
        if let Some(bell) = self.bells.get(self.me) {
            bell.notify.notified().await;
        }
    }
}

impl Bell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
