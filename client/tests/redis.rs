//! Idempotent consumption with a real Redis: `redis-server` has to be installed.
#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ringmq_client::idempotent::{Claim, Redis, RedisError, Store};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const MINUTE: Duration = Duration::from_secs(60);

/// A Redis of the test's own, on a port that nobody else uses; killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::start_at(port).await
    }

    async fn start_at(port: u16) -> Self {
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { process, port };
        let listening = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, listening).await.expect("redis listens");
        server
    }

    async fn store(&self) -> Redis {
        Redis::connect(&format!("redis://127.0.0.1:{}", self.port), "test:").await.unwrap()
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Sends a command and forgets it.
    async fn tell(&self, command: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn keys_are_claimed_consumed_and_freed() {
    let server = Server::start().await;
    let store = server.store().await;
    assert_eq!(store.claim("k", "a", MINUTE).await.unwrap(), Claim::Granted);
    assert_eq!(store.claim("k", "b", MINUTE).await.unwrap(), Claim::Held);
    assert!(!store.release("k", "b").await.unwrap(), "not its claim");
    assert!(!store.finish("k", "b", MINUTE).await.unwrap(), "not its claim");
    assert!(store.release("k", "a").await.unwrap());
    assert_eq!(store.claim("k", "b", MINUTE).await.unwrap(), Claim::Granted);
    assert!(store.finish("k", "b", MINUTE).await.unwrap());
    assert_eq!(store.claim("k", "c", MINUTE).await.unwrap(), Claim::Consumed);
    assert!(!store.release("k", "b").await.unwrap(), "consumed is consumed");
}

#[tokio::test]
async fn claims_and_marks_end_by_themselves() {
    let server = Server::start().await;
    let store = server.store().await;
    let short = Duration::from_millis(100);
    assert_eq!(store.claim("k", "slow", short).await.unwrap(), Claim::Granted);
    let again = async {
        while store.claim("k", "next", short).await.unwrap() != Claim::Granted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, again).await.unwrap();
    assert!(!store.finish("k", "slow", MINUTE).await.unwrap(), "its time is over");
    assert!(store.finish("k", "next", short).await.unwrap());
    let forgotten = async {
        while store.claim("k", "last", MINUTE).await.unwrap() != Claim::Granted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.unwrap();
}

#[tokio::test]
async fn of_many_members_at_once_one_gets_the_key() {
    let server = Server::start().await;
    let granted = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for member in 0..8 {
        let (store, granted) = (server.store().await, Arc::clone(&granted));
        tasks.spawn(async move {
            for key in 0..200 {
                let token = format!("{member}");
                let claim = store.claim(&key.to_string(), &token, MINUTE).await.unwrap();
                granted.fetch_add(usize::from(claim == Claim::Granted), Ordering::SeqCst);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(granted.load(Ordering::SeqCst), 200);
}

#[tokio::test]
async fn a_redis_that_is_down_is_an_error_and_comes_back() {
    let server = Server::start().await;
    let (store, port) = (server.store().await, server.port);
    drop(server);
    store.claim("k", "a", MINUTE).await.unwrap_err();
    let server = Server::start_at(port).await;
    let back = async {
        loop {
            match store.claim("k", "b", MINUTE).await {
                Ok(claim) => return claim,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let claim = timeout(PATIENCE, back).await.expect("the connection is made again");
    // The one that answered may not be the one that claimed.
    assert!(matches!(claim, Claim::Granted | Claim::Held));
    drop(server);
    Redis::connect(&format!("redis://127.0.0.1:{port}"), "").await.unwrap_err();
}

#[tokio::test]
async fn a_redis_that_is_slow_is_given_up_and_the_claim_stays_valid() {
    let server = Server::start().await;
    let store = server.store().await.call_timeout(Duration::from_millis(100));
    assert_eq!(store.claim("k", "a", MINUTE).await.unwrap(), Claim::Granted);
    server.signal("-STOP");
    let error = store.claim("k", "b", MINUTE).await.unwrap_err();
    assert!(matches!(error, RedisError::TimedOut), "{error}");
    server.signal("-CONT");
    let back = async {
        loop {
            match store.claim("k", "b", MINUTE).await {
                Ok(claim) => return claim,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    // No second run while the first one's claim holds.
    assert_eq!(timeout(PATIENCE, back).await.unwrap(), Claim::Held);
    assert!(store.finish("k", "a", MINUTE).await.unwrap());
}

#[tokio::test]
async fn a_redis_that_has_forgotten_grants_again() {
    let server = Server::start().await;
    let store = server.store().await;
    assert_eq!(store.claim("k", "a", MINUTE).await.unwrap(), Claim::Granted);
    server.tell("FLUSHALL").await;
    let again = async {
        while store.claim("k", "b", MINUTE).await.unwrap() != Claim::Granted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, again).await.unwrap();
    assert!(!store.finish("k", "a", MINUTE).await.unwrap(), "the first run is told");
}
