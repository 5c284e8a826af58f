//! What the guard does, with a store that can fail.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::*;
use crate::{lock, message::tests_support::received};

/// A store that can be away.
struct Flaky {
    inner: Memory,
    is_away: AtomicBool,
}

impl Flaky {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: Memory::new(100), is_away: AtomicBool::new(false) })
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.is_away.load(Ordering::SeqCst) { Err("away") } else { Ok(()) }
    }
}

impl Store for Flaky {
    type Error = &'static str;

    async fn claim(&self, key: &str, token: &str, time: Duration) -> Result<Claim, &'static str> {
        self.check()?;
        Ok(self.inner.claim(key, token, time).await.unwrap())
    }

    async fn finish(&self, key: &str, token: &str, time: Duration) -> Result<bool, &'static str> {
        self.check()?;
        Ok(self.inner.finish(key, token, time).await.unwrap())
    }

    async fn release(&self, key: &str, token: &str) -> Result<bool, &'static str> {
        self.check()?;
        Ok(self.inner.release(key, token).await.unwrap())
    }
}

fn delivery(offsets: &[i64]) -> Delivery {
    Delivery::new(offsets.iter().map(|at| received(*at, "body")).collect())
}

/// A guard by offset over a listener that counts, and gives these verdicts in turn.
fn guard(
    store: &Arc<Flaky>,
    verdicts: Vec<Verdict>,
) -> (Once<impl Listener, Arc<Flaky>>, Arc<AtomicUsize>) {
    let (runs, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&counted);
    let verdicts = Arc::new(Mutex::new(verdicts.into_iter()));
    let listener = move |_: Delivery| {
        runs.fetch_add(1, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready(lock(&verdicts).next().unwrap_or(Verdict::Done))
    };
    let once = Once::new(listener, Arc::clone(store)).key(|m| m.queue_offset().to_string());
    (once.claim_time(Duration::from_secs(60)).memory_time(Duration::from_secs(3600)), counted)
}

#[tokio::test]
async fn a_key_is_consumed_once() {
    let (once, runs) = guard(&Flaky::new(), vec![]);
    for _ in 0..3 {
        assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(once.consume(delivery(&[2])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_failure_frees_the_key() {
    let verdicts = vec![Verdict::Retry, Verdict::RetryAt(3), Verdict::Done];
    let (once, runs) = guard(&Flaky::new(), verdicts.clone());
    for want in verdicts {
        assert_eq!(once.consume(delivery(&[1])).await, want);
    }
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_panic_frees_the_key() {
    let panics = Arc::new(AtomicBool::new(true));
    let first = Arc::clone(&panics);
    let listener = move |_: Delivery| {
        let panics = first.swap(false, Ordering::SeqCst);
        async move { assert!(!panics, "fails once") }
    };
    let once = Once::new(listener, Flaky::new());
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Retry);
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
}

#[tokio::test(start_paused = true)]
async fn while_somebody_is_at_it_a_message_waits_and_after_a_crash_for_the_claim() {
    let store = Flaky::new();
    let (once, runs) = guard(&store, vec![]);
    let claimed = store.claim(":T:1", "a crashed run", Duration::from_secs(60)).await;
    assert_eq!(claimed, Ok(Claim::Granted));
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Retry);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // The one whose time is over can change nothing.
    assert_eq!(store.release(":T:1", "a crashed run").await, Ok(false));
    assert_eq!(store.finish(":T:1", "a crashed run", Duration::from_secs(1)).await, Ok(false));
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 2, "forgotten after its time");
}

#[tokio::test]
async fn a_store_that_is_away_holds_messages_back_or_lets_them_pass() {
    let store = Flaky::new();
    store.is_away.store(true, Ordering::SeqCst);
    let (once, runs) = guard(&store, vec![]);
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Retry);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let once = once.when_store_fails(WhenStoreFails::Consume);
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_lost_leaves_the_claim_in_place() {
    let store = Flaky::new();
    let goes_away = Arc::clone(&store);
    let listener = move |_: Delivery| {
        goes_away.is_away.store(true, Ordering::SeqCst);
        std::future::ready(())
    };
    let once = Once::new(listener, Arc::clone(&store));
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Done);
    store.is_away.store(false, Ordering::SeqCst);
    // No double effect while the claim is valid.
    assert_eq!(once.consume(delivery(&[1])).await, Verdict::Retry);
}

#[tokio::test]
async fn a_batch_ends_at_its_first_failure() {
    let verdicts = vec![Verdict::Done, Verdict::Done, Verdict::Retry];
    let (once, runs) = guard(&Flaky::new(), verdicts);
    assert_eq!(once.consume(delivery(&[1, 2, 3, 4])).await, Verdict::DoneFirst(2));
    assert_eq!(once.consume(delivery(&[1, 2, 3, 4])).await, Verdict::Done);
    assert_eq!(runs.load(Ordering::SeqCst), 5, "1, 2, 3, then 3 and 4");
}

#[tokio::test]
async fn of_many_runs_at_once_one_gets_the_key() {
    let (once, runs) = guard(&Flaky::new(), vec![]);
    let once = Arc::new(once);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let once = Arc::clone(&once);
        tasks.spawn(async move { once.consume(delivery(&[1])).await });
    }
    tasks.join_all().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn memory_has_a_bound() {
    let memory = Memory::new(64);
    for key in 0..1000 {
        let time = Duration::from_secs(3600 + key);
        let claim = memory.claim(&key.to_string(), "t", time).await;
        assert_eq!(claim, Ok(Claim::Granted));
    }
    // The newest are still known.
    assert_eq!(memory.claim("999", "u", Duration::from_secs(1)).await, Ok(Claim::Held));
    assert_eq!(memory.claim("1", "u", Duration::from_secs(1)).await, Ok(Claim::Granted));
}

#[test]
fn the_default_key_is_the_first_key() {
    assert_eq!(default_key(&received(1, "body")), "k");
}
