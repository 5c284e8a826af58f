//! Handles: a store that any thread and any executor can use.
//!
//! [`Engine`] is a cheap handle. Its futures need no particular runtime: they are woken through
//! their wakers, and each has a `wait` that blocks a thread instead. Behind them stands one
//! [`ShardLoop`] per shard, on threads that [`Engine::open`] starts because the caller asked for
//! that, or on the caller's own after [`Engine::attach`].
//!
//! Between the two lies one bounded mailbox per shard (`mailbox`); requests other than appends are
//! code that runs on the shard's thread (`task`).

mod append;
mod clock;
mod mailbox;
mod park;
mod queue;
mod read;
mod shard;
mod shard_loop;
mod task;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec};

pub use append::{Append, Commit, Room};
pub use mailbox::{InboxLimits, NewRecord};
pub use queue::{Queue, QueueOffsets};
pub use read::{Batch, Read};
pub use shard::{Fact, ShardHandle};
pub use shard_loop::{ShardLoop, Turn};
pub use task::Answer;

use crate::error::{AppendError, OpenError};
use crate::layout::shard_of;
use crate::recovery::RecoveryReport;
use crate::store::{OpenStore, Store, StoreGuard, StoreOptions};
use mailbox::{End, Mailbox, RoomKey};

/// How an engine is opened.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// The store, its shards and their memory.
    pub store: StoreOptions,
    /// What may wait between the handles and each shard.
    pub inbox: InboxLimits,
    /// Threads that [`Engine::open`] starts: at most one per shard, which is also the default.
    pub threads: Option<usize>,
}

/// A handle to an open store. Cheap to clone and to send to other threads.
///
/// The store stays open until [`close`](Self::close), or until the last handle, queue or shard
/// handle is dropped; that also closes it, waits for the engine's threads, and logs what goes wrong.
///
/// ```
/// use ringmq_engine::{Engine, EngineOptions, QueueOffset};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let engine = Engine::open(dir.path(), &EngineOptions::default())?;
/// let queue = engine.open_queue(b"greetings").wait()?;
/// let appended = queue.append(b"hello").wait()?; // Safe on the device from here on.
/// let batch = queue.read(appended.first_queue_offset).wait()?;
/// assert_eq!(&*batch.records[0].bytes, b"hello");
/// drop(batch);
/// engine.close().wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    reports: Vec<RecoveryReport>,
    store_id: u128,
    _guard: Arc<StoreGuard>,
}

impl Engine {
    /// Opens the store in a folder, or creates it there, and starts threads named
    /// `ringmq-shard-N` that run its shards until the engine is closed.
    ///
    /// # Errors
    ///
    /// [`OpenError`], whose text names cause and cure in one line.
    pub fn open(dir: &Path, options: &EngineOptions) -> Result<Self, OpenError> {
        let store = Store::open(dir, &options.store, random_id(), clock::now())?;
        let (engine, loops) = Self::attach(store, options.inbox)?;
        engine.start(loops, options.threads).map_err(|source| OpenError::Io {
            doing: "start a thread for",
            path: dir.to_owned(),
            source,
        })?;
        Ok(engine)
    }

    /// Makes handles for a store whose shards run on threads of the caller: each [`ShardLoop`] may go
    /// to one of its own, or be driven from a loop that has other work too.
    ///
    /// # Errors
    ///
    /// [`OpenError::RingForbidden`], when the kernel refuses what waking a thread needs.
    pub fn attach(store: Store, inbox: InboxLimits) -> Result<(Self, Vec<ShardLoop>), OpenError> {
        let (store_id, reports) = (store.id(), store.reports().to_vec());
        let OpenStore { shards, guard } = store.into_shards();
        let guard = Arc::new(guard);
        let (mut loops, mut mailboxes) = (Vec::new(), Vec::new());
        for ring in shards {
            let (shard_loop, mailbox) = ShardLoop::new(ring, inbox, Arc::clone(&guard))
                .map_err(OpenError::RingForbidden)?;
            loops.push(shard_loop);
            mailboxes.push(mailbox);
        }
        let threads = Mutex::default();
        let inner = Inner { mailboxes, threads, reports, store_id, _guard: guard };
        Ok((Self { inner: Arc::new(inner) }, loops))
    }

    fn of(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    fn start(&self, loops: Vec<ShardLoop>, threads: Option<usize>) -> io::Result<()> {
        let count = threads.unwrap_or(loops.len()).clamp(1, loops.len().max(1));
        let mut dealt: Vec<Vec<ShardLoop>> = (0..count).map(|_| Vec::new()).collect();
        for (number, shard_loop) in loops.into_iter().enumerate() {
            if let Some(hand) = dealt.get_mut(number % count) {
                hand.push(shard_loop);
            }
        }
        for (number, hand) in dealt.into_iter().enumerate() {
            let name = format!("ringmq-shard-{number}");
            let thread = thread::Builder::new().name(name).spawn(move || run(hand))?;
            self.inner.threads().push(thread);
        }
        Ok(())
    }

    /// Number of shards.
    pub fn shard_count(&self) -> u32 {
        crate::units::narrow(self.inner.mailboxes.len())
    }

    /// The shard with this number.
    pub fn shard(&self, number: u32) -> Option<ShardHandle> {
        let at = crate::units::index(u64::from(number));
        let mailbox = self.inner.mailboxes.get(at)?;
        Some(ShardHandle::new(Arc::clone(&self.inner), Arc::clone(mailbox), number))
    }

    /// The shard that a key belongs to, by its hash.
    #[expect(clippy::indexing_slicing, reason = "a remainder of the number of shards")]
    pub fn shard_for(&self, key: &[u8]) -> ShardHandle {
        let at = crate::units::index(u64::from(shard_of(key, 0, self.shard_count())));
        let (mailbox, number) = (Arc::clone(&self.inner.mailboxes[at]), crate::units::narrow(at));
        ShardHandle::new(Arc::clone(&self.inner), mailbox, number)
    }

    /// The queue with this key, on the shard that the key belongs to; it is opened if it is new.
    ///
    /// # Errors
    ///
    /// As for [`ShardHandle::open_queue`].
    pub fn open_queue(&self, key: &[u8]) -> Answer<Queue, AppendError> {
        self.shard_for(key).open_queue(key)
    }

    /// What recovery found when the store was opened, by shard.
    pub fn reports(&self) -> &[RecoveryReport] {
        &self.inner.reports
    }

    /// The store's id.
    pub fn store_id(&self) -> u128 {
        self.inner.store_id
    }

    /// Closes the store: refuses further requests, commits and answers those that were accepted,
    /// writes a checkpoint, closes the files, and ends the engine's threads. Reads that wait for
    /// further records are told that the engine is closed.
    ///
    /// The closing begins at once. With shards on threads of the caller's own, the future answers
    /// when those have called [`ShardLoop::close`].
    pub fn close(&self) -> Close {
        self.inner.begin_closing();
        Close {
            inner: Arc::clone(&self.inner),
            room: vec![RoomKey::default(); self.inner.mailboxes.len()],
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("shards", &self.inner.mailboxes.len())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_closing(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.close());
    }

    /// Waits for the threads, which are at their end or on the way there.
    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            // The last handle may be dropped by code that runs on the shard's own thread.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the engine has panicked");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.begin_closing();
        self.join();
    }
}

/// The future of a closed store; see [`Engine::close`].
#[must_use = "whether the store was closed well is in the answer"]
pub struct Close {
    inner: Arc<Inner>,
    room: Vec<RoomKey>,
}

impl Close {
    /// Blocks the thread until the store is closed.
    ///
    /// # Errors
    ///
    /// Why a shard did not end well, such as a poisoned one or a full device. What was acknowledged
    /// is safe all the same.
    pub fn wait(self) -> io::Result<()> {
        park::block_on(self)
    }
}

impl Future for Close {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let mut result = Ok(());
        for (mailbox, room) in this.inner.mailboxes.iter().zip(&mut this.room) {
            match mailbox.poll_end(room, context.waker()) {
                None => return Poll::Pending,
                Some(End::Closed) => {}
                Some(End::Failed(cause)) => result = Err(io::Error::other(cause)),
            }
        }
        this.inner.join();
        Poll::Ready(result)
    }
}

impl fmt::Debug for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Close").finish_non_exhaustive()
    }
}

/// Runs shards on one thread until they are closed.
fn run(mut loops: Vec<ShardLoop>) {
    let failed = |cause: io::Error| tracing::error!(%cause, "a shard has ended");
    if loops.len() == 1
        && let Some(only) = loops.pop()
    {
        only.run(clock::now).unwrap_or_else(failed);
        return;
    }
    while !loops.is_empty() {
        let mut idle = true;
        for at in (0..loops.len()).rev() {
            match loops.get_mut(at).map(|shard_loop| shard_loop.turn(clock::now())) {
                Some(Ok(Turn::Closing)) => {
                    loops.swap_remove(at).close(clock::now).unwrap_or_else(failed);
                }
                Some(Ok(Turn::Busy)) => idle = false,
                Some(Ok(Turn::Idle)) => idle &= loops.get(at).is_some_and(ShardLoop::may_sleep),
                // Dropping the shard tells its handles.
                Some(Err(cause)) => {
                    failed(cause);
                    drop(loops.swap_remove(at));
                }
                None => {}
            }
        }
        if idle {
            sleep(&loops);
        }
    }
}

/// Waits until one of the shards has something to do.
fn sleep(loops: &[ShardLoop]) {
    let longest = loops.iter().map(ShardLoop::sleep).min().unwrap_or_default();
    let longest = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    let mut polled: Vec<PollFd<'_>> = loops
        .iter()
        .map(|shard_loop| PollFd::from_borrowed_fd(shard_loop.event_fd(), PollFlags::IN))
        .collect();
    // An interrupted wait is a short one.
    let _ = rustix::event::poll(&mut polled, Some(&longest));
    let mut count = [0; 8];
    for shard_loop in loops {
        // Nothing to read means that this one did not wake us.
        let _ = rustix::io::read(shard_loop.event_fd(), &mut count);
    }
}

/// An id for a new store.
fn random_id() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(clock::now().get()));
    half() << 64 | half()
}
