//! How much one producer may have in flight: so many sends, with so many bytes.

use std::sync::Arc;

use tokio::{
    sync::{AcquireError, Semaphore, TryAcquireError},
    time::{Instant, timeout_at},
};

use crate::Error;

/// The unit in which bytes are counted.
const KIB: usize = 1024;

/// Most that can be counted, far above what a connection takes: sends, and KiB of them.
const COUNT_MAX: u32 = 1 << 20;

/// Lets sends through.
#[derive(Debug)]
pub(super) struct Gate {
    count: Semaphore,
    kib: Semaphore,
    count_max: u32,
    kib_max: u32,
}

/// The right to have one more send in flight, or several. Dropping it gives the room back.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    count: usize,
    kib: usize,
}

impl Permit {
    /// Takes over the room of another one of the same gate.
    pub(super) fn join(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
        self.kib += std::mem::take(&mut other.kib);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if 0 < self.count {
            self.gate.count.add_permits(self.count);
            self.gate.kib.add_permits(self.kib);
        }
    }
}

impl Gate {
    pub(super) fn new(count_max: u32, bytes_max: usize) -> Self {
        let count_max = count_max.clamp(1, COUNT_MAX);
        let kib_max = u32::try_from(bytes_max / KIB).unwrap_or(COUNT_MAX).clamp(1, COUNT_MAX);
        let semaphore = |permits: u32| Semaphore::new(permits.try_into().unwrap_or(1));
        Self { count: semaphore(count_max), kib: semaphore(kib_max), count_max, kib_max }
    }

    /// Waits for room for a send of so many bytes. One longer than all of the room takes all of it.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] at the deadline, [`Error::Closed`].
    pub(super) async fn enter(
        self: &Arc<Self>,
        len: usize,
        deadline: Instant,
    ) -> Result<Permit, Error> {
        if let Ok(permit) = self.try_enter(len) {
            return Ok(permit);
        }
        let entered = timeout_at(deadline, self.wait(len)).await.map_err(|_| self.busy())?;
        entered.map_err(|_| Error::Closed)
    }

    async fn wait(self: &Arc<Self>, len: usize) -> Result<Permit, AcquireError> {
        let kib = self.kib_of(len);
        self.count.acquire().await?.forget();
        // From here on the permit gives back what is forgotten.
        let mut permit = Permit { gate: Arc::clone(self), count: 1, kib: 0 };
        self.kib.acquire_many(kib).await?.forget();
        permit.kib = kib.try_into().unwrap_or_default();
        Ok(permit)
    }

    /// Takes room if there is any now.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`], [`Error::Closed`].
    pub(super) fn try_enter(self: &Arc<Self>, len: usize) -> Result<Permit, Error> {
        let kib = self.kib_of(len);
        let full = |error| match error {
            TryAcquireError::Closed => Error::Closed,
            TryAcquireError::NoPermits => self.busy(),
        };
        let room = self.kib.try_acquire_many(kib).map_err(full)?;
        self.count.try_acquire().map_err(full)?.forget();
        room.forget();
        Ok(Permit { gate: Arc::clone(self), count: 1, kib: kib.try_into().unwrap_or_default() })
    }

    fn kib_of(&self, len: usize) -> u32 {
        u32::try_from(len.div_ceil(KIB)).unwrap_or(u32::MAX).min(self.kib_max)
    }

    const fn busy(&self) -> Error {
        Error::Busy { in_flight_max: self.count_max }
    }

    /// Sends in flight.
    pub(super) fn in_flight(&self) -> u32 {
        let room = u32::try_from(self.count.available_permits()).unwrap_or(u32::MAX);
        self.count_max.saturating_sub(room)
    }

    /// Waits until nothing is in flight; sends that ask later wait behind it.
    pub(super) async fn drained(&self) {
        drop(self.count.acquire_many(self.count_max).await);
    }

    /// Lets nobody through from now on; whether it did before.
    pub(super) fn close(&self) -> bool {
        let was_open = !self.count.is_closed();
        self.count.close();
        self.kib.close();
        was_open
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sends_and_bytes_are_bounded_and_given_back() {
        let gate = Arc::new(Gate::new(2, 10 * KIB));
        let soon = || Instant::now() + Duration::from_secs(1);
        let one = gate.try_enter(4 * KIB).unwrap();
        assert!(matches!(gate.try_enter(7 * KIB), Err(Error::Busy { in_flight_max: 2 })));
        assert_eq!(gate.in_flight(), 1, "a refused send takes no place");
        let two = gate.try_enter(1).unwrap();
        assert!(matches!(gate.enter(1, soon()).await, Err(Error::Busy { .. })));
        drop(one);
        let three = gate.enter(9 * KIB, soon()).await.unwrap();
        assert!(matches!(gate.enter(1, soon()).await, Err(Error::Busy { .. })));
        drop((two, three));
        let giant = gate.enter(100 * KIB, soon()).await.unwrap();
        assert!(gate.try_enter(1).is_err(), "it has all of the room");
        drop(giant);
        gate.drained().await;
        assert!(gate.close() && !gate.close());
        assert!(matches!(gate.enter(1, soon()).await, Err(Error::Closed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_send_that_gives_up_waiting_gives_back_its_place() {
        let gate = Arc::new(Gate::new(2, 2 * KIB));
        let one = gate.try_enter(2 * KIB).unwrap();
        assert!(gate.enter(KIB, Instant::now() + Duration::from_secs(1)).await.is_err());
        drop(one);
        let (_one, _two) = (gate.try_enter(KIB).unwrap(), gate.try_enter(KIB).unwrap());
        assert_eq!(gate.in_flight(), 2);
    }
}
