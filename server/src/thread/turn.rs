//! The turn of a data thread, and what leads to one.

use std::{io, rc::Rc, time::Duration};

use ringmq_engine::EpochMillis;
use tokio::io::{Interest, unix::AsyncFd};

use super::{Answer, LocalShard, Pending, Question, Thread, awake::Awake};
use crate::{
    broker::{Executed, Failure, Reply, Ticket},
    net::{
        conn::{TICKS_PER_SECOND, sweep},
        signal::after_the_others,
    },
};

/// Milliseconds between two ticks of a shard.
const TICK_MS: i64 = 100;

/// Takes turns for as long as the thread runs.
pub(super) async fn take_turns(thread: Rc<Thread>) -> io::Result<()> {
    let mut awake = Awake::new()?;
    loop {
        thread.turn.wait().await;
        thread.links.wake();
        after_the_others().await;
        thread.take_turn();
        awake.look_for_work(&thread).await?;
        // A thread with work of its own does not say that it sleeps: being woken costs the others a
        // system call, and it looks for what they sent in its next turn anyway.
        if !thread.turn.is_set() && !thread.links.may_sleep() {
            thread.turn.set();
        }
    }
}

/// Another thread has put something.
pub(super) async fn hear_the_bell(thread: Rc<Thread>) {
    loop {
        thread.links.rung().await;
        thread.turn.set();
    }
}

/// A shard's ring has completions.
#[expect(
    deprecated,
    reason = "the other constructor is unsafe for kinds of descriptors unlike this"
)]
pub(super) async fn watch_ring(thread: Rc<Thread>, index: usize) -> io::Result<()> {
    let event = {
        let ring = thread.shards.get(index).map(|shard| shard.ring.borrow());
        let ring = ring.as_ref().and_then(|ring| ring.as_ref());
        let Some(ring) = ring else { return Ok(()) };
        AsyncFd::with_interest(ring.event_fd().try_clone_to_owned()?, Interest::READABLE)?
    };
    loop {
        // The descriptor is registered for edges: each completion is one, so the counter behind it
        // need not be read.
        event.readable().await?.clear_ready();
        thread.turn.set();
    }
}

/// Time passes: the coarse clock, idle and stalled connections, what shards do by time.
pub(super) async fn tick(thread: Rc<Thread>) {
    let mut interval = tokio::time::interval(Duration::from_millis(1000 / TICKS_PER_SECOND));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let tick = thread.net.tick.get() + 1;
        thread.net.tick.set(tick);
        if tick.is_multiple_of(TICKS_PER_SECOND / 2) {
            let conns: Vec<_> =
                thread.conns.borrow().iter().map(|(_, conn)| conn.clone()).collect();
            for conn in conns {
                sweep(&conn);
            }
        }
        thread.turn.set();
    }
}

/// Ends the hold time of pulls, each at its moment.
pub(super) async fn end_holds(thread: Rc<Thread>) {
    loop {
        let next = thread.held.borrow().next_end();
        let now = crate::clock::epoch_ms();
        match next {
            None => thread.new_end.notified().await,
            Some(end) if end > now => {
                let left = Duration::from_millis((end - now).unsigned_abs());
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    () = thread.new_end.notified() => {}
                }
            }
            Some(_) => {
                thread.refresh_now();
                let mut due = thread.held.borrow().due(now);
                while let Some(token) = due {
                    thread.end_hold(token);
                    due = thread.held.borrow().due(now);
                }
                thread.turn.set();
                after_the_others().await;
            }
        }
    }
}

impl Thread {
    fn take_turn(&self) {
        let now = self.refresh_now();
        self.hear_others();
        for shard in &self.shards {
            self.turn_shard(shard, now);
        }
        self.links.ring();
    }

    /// Takes what other threads have put: answers, nudges and requests.
    fn hear_others(&self) {
        let (mut nudges, mut answers) = (Vec::new(), Vec::new());
        for other in (0..self.links.threads()).filter(|other| *other != self.index) {
            self.links.collect(other, &mut nudges, |answer| answers.push(answer));
            for Answer { ticket, reply } in answers.drain(..) {
                self.finish(ticket, reply);
            }
            while let Some(question) = self.links.next_request(other) {
                self.take_question(question);
            }
        }
        for token in nudges {
            self.wake(token);
        }
    }

    fn take_question(&self, Question { shard, ticket, op }: Question) {
        let super::Place::Here(_, local) = self.place(shard) else {
            unreachable!("requests go to the thread of their shard")
        };
        // Whoever waits already goes first.
        if local.backlog.borrow().is_empty() {
            self.execute_or_keep(local, ticket, op);
        } else {
            local.backlog.borrow_mut().push_back((ticket, op));
        }
    }

    /// Whether the op was taken; if not, it is first in the shard's backlog.
    fn execute_or_keep(&self, local: &LocalShard, ticket: Ticket, op: crate::broker::Op) -> bool {
        match local.execute(self, ticket, op) {
            Executed::Reply(reply) => self.deliver(ticket, reply),
            Executed::Later => {}
            Executed::NoRoom(op) => {
                local.backlog.borrow_mut().push_front((ticket, op));
                return false;
            }
        }
        true
    }

    fn turn_shard(&self, shard: &LocalShard, now: EpochMillis) {
        if let Err(error) = self.turn_ring(shard, now) {
            tracing::error!(shard = shard.number, %error, "the ring of a shard failed");
            self.shared.fatal.notify_one();
        }
        self.answer_committed(shard);
        let (mut woken, mut ready) = (Vec::new(), Vec::new());
        let room = shard.engine(|engine| {
            shard.losses.borrow_mut().step(engine, now.get());
            engine.take_woken(&mut woken);
            engine.take_ready(&mut ready);
            engine.take_room()
        });
        for token in woken {
            self.wake(token);
        }
        for read in ready {
            self.read_again(shard, read);
        }
        if room {
            self.use_room(shard);
        }
    }

    fn turn_ring(&self, shard: &LocalShard, now: EpochMillis) -> io::Result<()> {
        let mut ring = shard.ring.borrow_mut();
        let Some(ring) = ring.as_mut() else { return Ok(()) };
        let last = shard.last_tick.get();
        if now.get() - last >= TICK_MS || now.get() < last {
            shard.last_tick.set(now.get());
            ring.shard().tick(now);
        }
        ring.turn(now)
    }

    /// Answers everything that the committed frontier has passed.
    fn answer_committed(&self, shard: &LocalShard) {
        let (committed, poison) =
            shard.engine(|engine| (engine.committed(), engine.poisoned().map(str::to_owned)));
        loop {
            let due = {
                let mut acks = shard.acks.borrow_mut();
                let next = acks.front().is_some_and(|(sequence, ..)| *sequence <= committed);
                if next { acks.pop_front() } else { None }
            };
            let Some((_, ticket, pending)) = due else { break };
            match pending {
                Pending::Reply(reply) => self.deliver(ticket, reply),
                Pending::Facts(reply) => drop(reply.send(Ok(()))),
            }
        }
        if let Some(cause) = poison {
            self.fail_waiting(shard, &cause);
        }
    }

    /// The shard has stopped: what waits for a commit will not get one.
    fn fail_waiting(&self, shard: &LocalShard, cause: &str) {
        if !shard.reported.replace(true) {
            tracing::error!(shard = shard.number, cause, "the shard takes no more writes");
            self.use_room(shard);
        }
        let failure = Failure::from(ringmq_engine::AppendError::Poisoned(cause.to_owned()));
        let waiting = std::mem::take(&mut *shard.acks.borrow_mut());
        for (_, ticket, pending) in waiting {
            match pending {
                Pending::Reply(_) => self.deliver(ticket, Reply::Failed(failure.clone())),
                Pending::Facts(reply) => drop(reply.send(Err(cause.to_owned()))),
            }
        }
    }

    /// The device has been read for an op: it goes on.
    fn read_again(&self, shard: &LocalShard, read: u64) {
        let slot = usize::try_from(read).unwrap_or(usize::MAX);
        let waiting = shard.reads.borrow_mut().try_remove(slot);
        let Some((ticket, op)) = waiting else { return };
        self.execute_or_keep(shard, ticket, op);
        // What the op wants of the device now is for the next turn.
        self.turn.set();
    }

    /// The shard takes appends again: first what other threads sent, then the connections.
    fn use_room(&self, shard: &LocalShard) {
        loop {
            let first = shard.backlog.borrow_mut().pop_front();
            let Some((ticket, op)) = first else { break };
            if !self.execute_or_keep(shard, ticket, op) {
                return;
            }
            // What was appended is for the next turn.
            self.turn.set();
        }
        shard.room.notify_waiters();
    }
}
