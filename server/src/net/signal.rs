//! A wake-up between two tasks of one thread.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
};

/// Remembers that it was set until someone waits for it. One task waits at a time.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    set: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Sets it and wakes whoever waits.
    pub(crate) fn set(&self) {
        if !self.set.replace(true)
            && let Some(waiter) = self.waiter.borrow_mut().take()
        {
            waiter.wake();
        }
    }

    /// Whether it is set and nobody has waited for it yet.
    pub(crate) fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Waits until it is set, and clears it.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            let mut waiter = self.waiter.borrow_mut();
            match &mut *waiter {
                Some(known) => known.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await;
    }
}

/// Lets every task that is ready run once before this one goes on, without asking the kernel.
pub(crate) async fn after_the_others() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        // Woken from its own poll, a task goes to the end of the thread's queue.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
