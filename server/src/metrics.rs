//! Figures for monitoring over HTTP: `/metrics` in Prometheus' text format, and `/ready`.
//!
//! The page is off unless an address is given, and runs on the control thread: a scrape asks each
//! data thread once and costs it a copy of its counters. `/ready` answers 200 while every shard takes
//! writes, and 503 with the reason once one does not or a data thread does not answer.
//!
//! Everything is bounded: connections at a time, the bytes and time of a request, the time that the
//! figures may take. A connection serves one request. Whoever reaches the address may read the page;
//! it tells counts and no names.
//!
//! Elsewhere: the text of the page is in `page`, the figures come from `thread::plane`.

mod page;

use std::{net::TcpListener, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringmq_engine::{DiskUse, ShardStats};
use tokio::{
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::control::BoxFuture;

/// Connections at a time; further ones wait in the backlog of the socket.
pub const CONNECTIONS_MAX: usize = 16;
/// Bytes of a request's head at most: the least that the HTTP library takes.
pub const REQUEST_LEN_MAX: usize = 8 << 10;
/// Header lines of a request at most.
pub const HEADERS_MAX: usize = 64;
/// How long a connection may take for its request and for taking the answer.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the data threads may take to tell their figures; they count as stuck then.
pub const FIGURES_TIMEOUT: Duration = Duration::from_secs(3);

/// Source: "Exposition formats" of Prometheus' documentation, text format 0.0.4.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// What a broker has to tell.
#[derive(Clone, Debug, Default)]
pub struct BrokerFigures {
    /// By number.
    pub shards: Vec<ShardFigures>,
    /// Connections of clients that are open.
    pub connections: usize,
    /// Connections that were closed because their socket took no answers.
    pub stalled: u64,
    /// Pulls that wait for messages.
    pub parked_pulls: usize,
    /// Topics, those of the system included.
    pub topics: usize,
    /// Consumer groups that are configured or have members.
    pub consumer_groups: usize,
}

/// What a shard has to tell.
#[derive(Clone, Debug, Default)]
pub struct ShardFigures {
    /// Its number.
    pub shard: u32,
    /// Its counters.
    pub stats: ShardStats,
    /// Queues that were ever opened.
    pub queues: usize,
    /// Why it takes no more writes.
    pub poison: Option<String>,
    /// What it takes of the disk.
    pub disk: DiskUse,
    /// Messages that consumer groups lost to retention before they had read them.
    pub lost_unread: Vec<(String, u64)>,
}

/// Where a broker's figures come from.
pub trait FigureSource: Send + Sync {
    /// The figures of this moment. `None`: the broker is stopping.
    fn figures(&self) -> BoxFuture<Option<BrokerFigures>>;
}

type Source = Option<Arc<dyn FigureSource>>;

/// Serves the page until `stop` says so. A process without a broker has no `source`, and is ready.
///
/// # Errors
///
/// The socket cannot be used.
pub(crate) async fn serve(
    socket: TcpListener,
    source: Source,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    /// Pause behind a failed accept; mostly a shortage of descriptors.
    const PAUSE: Duration = Duration::from_millis(100);
    let socket = tokio::net::TcpListener::from_std(socket)?;
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            Some(_) = connections.join_next() => {}
            accepted = socket.accept(), if has_room => match accepted {
                Ok((stream, _)) => {
                    connections.spawn_local(serve_one(stream, source.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

async fn serve_one(stream: TcpStream, source: Source) {
    let service = service_fn(|request| answer(request, source.clone()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .max_buf_size(REQUEST_LEN_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics ended early"),
        Err(_) => tracing::debug!("a request for metrics took too long"),
    }
}

async fn answer(
    request: Request<Incoming>,
    source: Source,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/ready") {
        return reply(StatusCode::NOT_FOUND, TEXT_TYPE, "there are /metrics and /ready\n".into());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused = Response::builder().status(StatusCode::METHOD_NOT_ALLOWED);
        return refused.header(ALLOW, "GET, HEAD").body(Full::default());
    }
    let figures = ask(source).await;
    match (path, figures) {
        ("/metrics", figures) => {
            reply(StatusCode::OK, METRICS_TYPE, page::metrics(figures.as_ref().map(Option::as_ref)))
        }
        (_, Ok(figures)) => match figures.and_then(why_not_ready) {
            None => reply(StatusCode::OK, TEXT_TYPE, "ready\n".into()),
            Some(why) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, why),
        },
        (_, Err(Silent(why))) => {
            reply(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, format!("{why}\n"))
        }
    }
}

fn reply(
    status: StatusCode,
    kind: &'static str,
    text: String,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let body = Full::new(Bytes::from(text));
    Response::builder().status(status).header(CONTENT_TYPE, kind).body(body)
}

/// The broker gives no figures, for this reason.
#[derive(Clone, Copy, Debug)]
struct Silent(&'static str);

/// The broker's figures; none of a process that has no broker.
async fn ask(source: Source) -> Result<Option<BrokerFigures>, Silent> {
    let Some(source) = source else { return Ok(None) };
    match timeout(FIGURES_TIMEOUT, source.figures()).await {
        Ok(Some(figures)) => Ok(Some(figures)),
        Ok(None) => Err(Silent("the broker is stopping")),
        Err(_) => Err(Silent("a data thread does not answer")),
    }
}

/// One line for each shard that takes no writes; `None` if there is none.
fn why_not_ready(figures: BrokerFigures) -> Option<String> {
    let lines: String = figures
        .shards
        .into_iter()
        .filter_map(|shard| Some((shard.shard, shard.poison?)))
        .map(|(shard, why)| format!("shard {shard} takes no writes: {why}\n"))
        .collect();
    (!lines.is_empty()).then_some(lines)
}
