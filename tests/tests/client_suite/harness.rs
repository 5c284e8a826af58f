//! Runs cases, and holds what they say against what is expected of the cluster.

use std::{collections::BTreeSet, future::Future, path::Path, pin::Pin, time::Duration};

use ringmq_tests::{
    folder::Folder,
    server::{Ringmq, Settings},
};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::context::Context;

/// Most cases that run at one time.
const CASES_MAX: usize = 6;

/// How long a case may take.
const CASE_TIME_MAX: Duration = Duration::from_secs(120);

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A case: a name that says what holds, and what finds out.
pub(crate) struct Case {
    name: &'static str,
    run: Box<dyn Fn(Context) -> Running + Send>,
}

pub(crate) fn case<F>(name: &'static str, run: fn(Context) -> F) -> Case
where
    F: Future<Output = ()> + Send + 'static,
{
    Case { name, run: Box::new(move |context| Box::pin(run(context))) }
}

/// What came of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
}

/// Runs the cases whose names contain the first argument, and returns the exit code.
pub(crate) fn run(cases: Vec<Case>) -> i32 {
    // What the client says, for those who set RUST_LOG.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let filter = filter.unwrap_or_default();
    let own = std::env::var("RINGMQ_TEST_NAMESRV").is_err().then(start_ringmq);
    let addr = match &own {
        Some((server, _)) => server.namesrv().to_string(),
        None => std::env::var("RINGMQ_TEST_NAMESRV").unwrap(),
    };
    let list = std::env::var("RINGMQ_TEST_EXPECT").unwrap_or_else(|_| "ringmq".into());
    let expected = expected_to_fail(&list);
    let known: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
    let unknown: Vec<_> = expected.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "expected/{list}.txt names no case: {unknown:?}");
    println!("client suite against {addr}, expectations of {list}");
    let chosen: Vec<_> = cases.into_iter().filter(|case| case.name.contains(&filter)).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let results = runtime.block_on(run_all(chosen, &addr));
    let wrong = results.iter().filter(|(name, outcome)| !report(name, *outcome, &expected)).count();
    println!("client suite: {} cases, {wrong} not as expected", results.len());
    i32::from(wrong > 0)
}

/// A server that lives as long as the run.
fn start_ringmq() -> (Ringmq, Folder) {
    let folder = Folder::new("client-suite");
    let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
    (server, folder)
}

/// The cases that a kind of cluster is known to fail.
fn expected_to_fail(list: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client_suite/expected");
    let path = path.join(format!("{list}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(String::from).collect()
}

async fn run_all(cases: Vec<Case>, addr: &str) -> Vec<(&'static str, Outcome)> {
    let room = std::sync::Arc::new(Semaphore::new(CASES_MAX));
    let mut running = JoinSet::new();
    for case in cases {
        let (room, context) = (std::sync::Arc::clone(&room), Context::new(addr, case.name));
        let name = case.name;
        let started = (case.run)(context);
        running.spawn(async move {
            let _place = room.acquire_owned().await.unwrap();
            // A task of its own, so that its panic is told apart from this one.
            let mut task = tokio::spawn(started);
            let ended = tokio::time::timeout(CASE_TIME_MAX, &mut task).await;
            let outcome = match ended {
                Ok(Ok(())) => Outcome::Passed,
                // The panic has printed what it had to say.
                Ok(Err(_)) => Outcome::Failed,
                Err(_) => {
                    task.abort();
                    println!("{name}: not over within {} s", CASE_TIME_MAX.as_secs());
                    Outcome::Failed
                }
            };
            (name, outcome)
        });
    }
    let mut results: Vec<_> = running.join_all().await;
    results.sort_unstable_by_key(|(name, _)| *name);
    results
}

/// Prints a line; whether the outcome is the expected one.
fn report(name: &str, outcome: Outcome, expected: &BTreeSet<String>) -> bool {
    let (text, is_right) = match (outcome, expected.contains(name)) {
        (Outcome::Passed, false) => ("ok", true),
        (Outcome::Failed, true) => ("failed, as expected", true),
        (Outcome::Failed, false) => ("FAILED", false),
        (Outcome::Passed, true) => ("PASSED, though listed: take it off the list", false),
    };
    println!("{name} ... {text}");
    is_right
}
