//! Receive buffers, in classes.
//!
//! An idle connection waits with 512 bytes. One that sends more gets 4 KiB, which needs no budget, so
//! that ordinary requests get through whatever the others do. Busy ones share large buffers of their
//! thread, and a frame longer than those gets a buffer of its own length, both under a budget: a
//! connection waits for budget instead of allocating. Large buffers and frames have separate budgets,
//! and whoever holds a frame never waits for a large buffer, so waiting cannot go round in a circle.
//!
//! A connection that waits for its next request may keep a large buffer only while a quarter of them
//! is free.

use std::{cell::RefCell, io, rc::Rc};

use ringmq_protocol::frame::{self, FRAME_LEN_MAX, FrameError};
use tokio::sync::Semaphore;
use tokio_uring::{buf::BoundedBuf, net::TcpStream};

/// Bytes that an idle connection waits with.
pub(crate) const IDLE_LEN: usize = 512;
/// Bytes of a connection with a little traffic.
pub(crate) const SMALL_LEN: usize = 4 << 10;
/// Bytes of a connection with much traffic.
pub(crate) const LARGE_LEN: usize = 64 << 10;
/// Longest frame with its length field.
const TOTAL_LEN_MAX: usize = FRAME_LEN_MAX + 4;
/// Unit of the frame budget in bytes.
const FRAME_UNIT: usize = 64 << 10;
/// Free large buffers that a thread keeps for reuse.
const SPARE_MAX: usize = 64;

/// One thread's large buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    spare: RefCell<Vec<Vec<u8>>>,
    /// Large buffers that may still be taken.
    large: Semaphore,
    large_count: usize,
    /// Units of [`FRAME_UNIT`] that frames may still take.
    frames: Semaphore,
}

impl Pool {
    /// A pool that hands out at most about `bytes` at a time, but always enough for one frame.
    pub(crate) fn new(bytes: usize) -> Self {
        let large_count = (bytes / 2 / LARGE_LEN).max(16);
        let frames = (bytes / 2).max(TOTAL_LEN_MAX).div_ceil(FRAME_UNIT);
        Self {
            spare: RefCell::new(Vec::new()),
            large: Semaphore::new(large_count),
            large_count,
            frames: Semaphore::new(frames),
        }
    }

    fn buffer(&self) -> Vec<u8> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(LARGE_LEN))
    }

    fn give_back(&self, mut buffer: Vec<u8>, class: Class) {
        match class {
            Class::Idle | Class::Small => {}
            Class::Large => {
                self.large.add_permits(1);
                buffer.clear();
                let mut spare = self.spare.borrow_mut();
                if spare.len() < SPARE_MAX {
                    spare.push(buffer);
                }
            }
            Class::Frame(len) => self.frames.add_permits(len.div_ceil(FRAME_UNIT)),
        }
    }

    /// Whether a connection without a request may keep a large buffer.
    fn is_relaxed(&self) -> bool {
        self.large.available_permits() * 4 >= self.large_count
    }
}

/// Which buffer a connection has or needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Idle,
    Small,
    Large,
    /// For one frame of this many bytes.
    Frame(usize),
}

impl Class {
    fn len(self) -> usize {
        match self {
            Self::Idle => IDLE_LEN,
            Self::Small => SMALL_LEN,
            Self::Large => LARGE_LEN,
            Self::Frame(len) => len,
        }
    }

    /// The class for what is left of the last chunk, given how much came lately.
    fn needed(left: &[u8], recent: usize) -> Result<Self, FrameError> {
        let by_traffic = if recent <= IDLE_LEN {
            Self::Idle
        } else if recent <= SMALL_LEN {
            Self::Small
        } else {
            Self::Large
        };
        if left.is_empty() {
            return Ok(by_traffic);
        }
        let frame_len = frame::peek_len(left, FRAME_LEN_MAX)?.unwrap_or(IDLE_LEN + 1);
        Ok(match frame_len {
            ..=SMALL_LEN if by_traffic != Self::Large => Self::Small,
            ..=LARGE_LEN => Self::Large,
            _ => Self::Frame(frame_len),
        })
    }
}

/// One connection's receive buffer, and what is in it.
#[derive(Debug)]
pub(crate) struct Inbox {
    pool: Rc<Pool>,
    buffer: Vec<u8>,
    class: Class,
    /// Where the bytes that nobody has taken begin.
    start: usize,
    /// Bytes of the largest chunk lately, halved with every smaller one; for one that filled its
    /// buffer, more than that buffer holds.
    recent: usize,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer), self.class);
    }
}

impl Inbox {
    pub(crate) fn new(pool: Rc<Pool>) -> Self {
        let buffer = Vec::with_capacity(IDLE_LEN);
        Self { pool, buffer, class: Class::Idle, start: 0, recent: 0 }
    }

    /// What has arrived and was not consumed.
    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Moves on by `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.buffer.len());
    }

    /// Whether part of a frame over 4 KiB is there: its rest has to come in time.
    pub(crate) fn holds_budget_for_a_frame(&self) -> bool {
        !self.unread().is_empty() && matches!(self.class, Class::Large | Class::Frame(_))
    }

    /// Gets the buffer that the next read needs, waiting for budget if there is none.
    ///
    /// # Errors
    ///
    /// If what is there is not the start of a frame.
    pub(crate) async fn make_room(&mut self) -> Result<(), FrameError> {
        let needed = Class::needed(self.unread(), self.recent)?;
        let keeps = match (self.class, needed) {
            (Class::Frame(_), _) => self.class == needed,
            (Class::Large, Class::Idle | Class::Small) => false,
            (has, needed) => {
                has.len() >= needed.len() && (has == needed || !self.unread().is_empty())
            }
        };
        if keeps {
            self.compact();
            return Ok(());
        }
        let class = self.acquire(needed).await;
        let mut buffer = match class {
            Class::Large => self.pool.buffer(),
            class => Vec::with_capacity(class.len()),
        };
        buffer.extend_from_slice(self.unread());
        self.start = 0;
        let old = std::mem::replace(&mut self.buffer, buffer);
        self.pool.give_back(old, std::mem::replace(&mut self.class, class));
        Ok(())
    }

    async fn acquire(&self, needed: Class) -> Class {
        match needed {
            Class::Idle | Class::Small => needed,
            Class::Large => {
                let waits_for_frame = !self.unread().is_empty();
                if !waits_for_frame && !self.pool.is_relaxed() {
                    return Class::Small;
                }
                if let Ok(permit) = self.pool.large.try_acquire() {
                    permit.forget();
                    return Class::Large;
                }
                let fits_small = frame::peek_len(self.unread(), FRAME_LEN_MAX)
                    .is_ok_and(|len| len.is_none_or(|len| len <= SMALL_LEN));
                if fits_small && self.unread().len() < SMALL_LEN {
                    return Class::Small;
                }
                self.pool.large.acquire().await.expect("never closed").forget();
                Class::Large
            }
            Class::Frame(len) => {
                let units = u32::try_from(len.div_ceil(FRAME_UNIT)).expect("frames are bounded");
                self.pool.frames.acquire_many(units).await.expect("never closed").forget();
                needed
            }
        }
    }

    /// Moves what is left to the front.
    fn compact(&mut self) {
        if self.start > 0 {
            let left = self.buffer.len() - self.start;
            self.buffer.copy_within(self.start.., 0);
            self.buffer.truncate(left);
            self.start = 0;
        }
    }

    /// Reads one chunk behind what is there. 0: the peer has ended.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    ///
    /// # Panics
    ///
    /// If there is no room, that is, without [`Inbox::make_room`] before.
    pub(crate) async fn read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let filled = self.buffer.len();
        let end = self.class.len();
        assert!(filled < end, "a read without room");
        let buffer = std::mem::take(&mut self.buffer);
        let (result, slice) = stream.read(buffer.slice(filled..end)).await;
        self.buffer = slice.into_inner();
        let len = result?;
        // A chunk that fills its buffer is only the part that fitted: more waits behind it.
        let traffic = if filled + len == end { end + 1 } else { len };
        self.recent = traffic.max(self.recent / 2);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first eight bytes of a frame of `total` bytes.
    fn frame_of(total: usize) -> Vec<u8> {
        let len = u32::try_from(total - 4).unwrap();
        [len.to_be_bytes(), [0, 0, 0, 2]].concat()
    }

    #[track_caller]
    fn check(left: &[u8], recent: usize, want: Class) {
        assert_eq!(Class::needed(left, recent), Ok(want));
    }

    #[test]
    fn an_idle_connection_waits_with_512_bytes() {
        check(&[], 0, Class::Idle);
        check(&[], 512, Class::Idle);
        check(&[], 513, Class::Small);
        check(&[], 4097, Class::Large);
    }

    #[test]
    fn the_rest_of_a_frame_gets_a_buffer_that_holds_all_of_it() {
        check(&frame_of(600), 512, Class::Small);
        check(&frame_of(600), 60_000, Class::Large);
        check(&frame_of(4096), 512, Class::Small);
        check(&frame_of(4097), 512, Class::Large);
        check(&frame_of(LARGE_LEN), 512, Class::Large);
        check(&frame_of(LARGE_LEN + 1), 512, Class::Frame(LARGE_LEN + 1));
        check(&frame_of(TOTAL_LEN_MAX), 512, Class::Frame(TOTAL_LEN_MAX));
        check(&[0, 0], 512, Class::Small);
    }

    #[test]
    fn what_is_no_frame_is_refused_before_anything_is_allocated() {
        assert!(Class::needed(&[0xff; 8], 512).is_err());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_frame_waits_for_budget_and_large_buffers_do_not_wait_for_frames() {
        let pool = Rc::new(Pool::new(0));
        let mut first = Inbox::new(pool.clone());
        first.buffer.extend(frame_of(TOTAL_LEN_MAX));
        first.make_room().await.unwrap();
        assert_eq!(first.class, Class::Frame(TOTAL_LEN_MAX));
        let mut second = Inbox::new(pool.clone());
        second.buffer.extend(frame_of(LARGE_LEN + 1));
        let mut waiting = Box::pin(second.make_room());
        let once = std::future::poll_fn(|context| {
            std::task::Poll::Ready(waiting.as_mut().poll(context).is_ready())
        });
        assert!(!once.await, "the budget is taken");
        let mut third = Inbox::new(pool.clone());
        third.buffer.extend(frame_of(LARGE_LEN));
        third.make_room().await.unwrap();
        assert_eq!(third.class, Class::Large);
        drop(first);
        waiting.await.unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn without_large_buffers_ordinary_requests_still_get_through() {
        let pool = Rc::new(Pool::new(0));
        let mut holders = Vec::new();
        for _ in 0..pool.large_count {
            let mut inbox = Inbox::new(pool.clone());
            inbox.buffer.extend(frame_of(LARGE_LEN));
            inbox.make_room().await.unwrap();
            holders.push(inbox);
        }
        let mut inbox = Inbox::new(pool.clone());
        inbox.recent = LARGE_LEN;
        inbox.make_room().await.unwrap();
        assert_eq!(inbox.class, Class::Small, "a connection without a request");
        inbox.buffer.extend(frame_of(1200));
        inbox.make_room().await.unwrap();
        assert_eq!(inbox.class, Class::Small, "a frame that fits");
        drop(holders);
        assert_eq!(pool.large.available_permits(), pool.large_count);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn leftovers_move_to_the_front_and_keep_their_bytes() {
        let mut inbox = Inbox::new(Rc::new(Pool::new(0)));
        inbox.buffer.extend(vec![7; 500]);
        inbox.buffer.extend(frame_of(100));
        inbox.consume(500);
        inbox.make_room().await.unwrap();
        assert_eq!(inbox.unread(), frame_of(100));
        assert_eq!(inbox.start, 0);
        inbox.consume(8);
        inbox.make_room().await.unwrap();
        assert_eq!(inbox.class, Class::Idle);
        assert_eq!(inbox.unread(), [0; 0]);
    }
}
