//! Starting and stopping the control thread.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
};

use tokio::{
    runtime,
    sync::watch,
    task::{LocalSet, spawn_local},
};

use super::{
    BrokerControl, ControlConfig, MetricsControlConfig, NamesrvControlConfig, broker::Broker,
    facts::FactError, service::Service,
};
use crate::{
    metrics::{self, FigureSource},
    namesrv::{KvTable, Listener, NameServer},
    net::{self, listen::RETRY},
};

/// File of the name server's KV configuration in its folder.
const KV_FILE: &str = "kvConfig.json";

/// A running control thread.
#[derive(Debug)]
pub struct ControlHandle {
    namesrv_addr: Option<SocketAddr>,
    metrics_addr: Option<SocketAddr>,
    registered: mpsc::Receiver<()>,
    stop: watch::Sender<bool>,
    thread: thread::JoinHandle<()>,
}

/// Why the control thread did not start, in one line with cause and cure.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The name server's address cannot be listened on.
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The address for monitoring cannot be listened on.
    Metrics {
        /// The address.
        addr: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The name server's KV configuration cannot be read.
    KvConfig {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The store's topics or groups cannot be used.
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system gives no thread or no event queue.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { addr, error } if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "name server address {addr} is in use: stop the other process or choose another \
                 with --namesrv-listen"
            ),
            Self::Listen { addr, error } => write!(
                f,
                "the name server cannot listen on {addr}: {error}; choose another address with \
                 --namesrv-listen"
            ),
            Self::Metrics { addr, error } => write!(
                f,
                "metrics cannot be served on {addr}: {error}; choose another address with \
                 --metrics-listen"
            ),
            Self::KvConfig { path, error } => {
                write!(f, "{} cannot be read: {error}; repair or remove it", path.display())
            }
            Self::Store(error) => write!(f, "{error}"),
            Self::Thread(error) => write!(f, "the control thread cannot start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<FactError> for StartError {
    fn from(error: FactError) -> Self {
        Self::Store(error.into())
    }
}

/// Starts the control thread: the name server if there is one, and the broker if there is one.
///
/// When this returns, the name server listens and topics and groups are published. The broker's data
/// threads must be able to accept connections by then, since its registration begins at once; see
/// [`ControlHandle::wait_registered`]. With a name server in the same process the broker registers
/// with that one too, over its socket.
///
/// # Errors
///
/// [`StartError`]: print it and end.
pub fn start(config: ControlConfig) -> Result<ControlHandle, StartError> {
    let ControlConfig { broker, namesrv, metrics, epoch_ms } = config;
    let namesrv = namesrv.map(open_namesrv).transpose()?;
    let metrics = metrics.map(open_metrics).transpose()?;
    let metrics_addr = metrics.as_ref().map(|metrics| metrics.addr);
    let namesrv_addr = namesrv.as_ref().map(|namesrv| namesrv.addr);
    let broker = broker.map(|parts| restore(parts, namesrv_addr, epoch_ms)).transpose()?;
    let (stop, stopped) = watch::channel(false);
    let (told, registered) = mpsc::channel();
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
    let run = move || {
        LocalSet::new()
            .block_on(&runtime, run((namesrv, broker, metrics), epoch_ms, told, stopped));
    };
    let thread =
        thread::Builder::new().name("control".to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok(ControlHandle { namesrv_addr, metrics_addr, registered, stop, thread })
}

impl ControlHandle {
    /// Where the name server listens, if there is one: its real port where the configuration said 0.
    #[must_use]
    pub fn namesrv_addr(&self) -> Option<SocketAddr> {
        self.namesrv_addr
    }

    /// Where figures for monitoring are served, if they are.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Blocks until the broker has registered with every name server or failed to once, so at most
    /// for the time of one registration. Failures are logged and tried again for ever.
    pub fn wait_registered(&self) {
        // An error means that the thread has ended or there is no broker: nothing to wait for.
        let _ = self.registered.recv();
    }

    /// Whether the thread still runs. It ends by itself only if it panicked or the requests' channel
    /// was closed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Says good-bye to the name servers (at most 3 s), writes the files for people and ends the
    /// thread. Data threads must go on taking messages until this returns.
    ///
    /// # Errors
    ///
    /// The thread had panicked.
    pub fn stop(self) -> thread::Result<()> {
        self.stop.send_replace(true);
        self.thread.join()
    }
}

/// A name server that is ready to run.
struct OpenNamesrv {
    addr: SocketAddr,
    socket: TcpListener,
    server: NameServer,
    kv_path: PathBuf,
}

fn open_namesrv(config: NamesrvControlConfig) -> Result<OpenNamesrv, StartError> {
    let kv_path = config.data_dir.join(KV_FILE);
    let kv =
        read_kv(&kv_path).map_err(|error| StartError::KvConfig { path: kv_path.clone(), error })?;
    let listen = |error| StartError::Listen { addr: config.listen, error };
    let socket = net::listen::listen(config.listen, RETRY).map_err(listen)?;
    let addr = socket.local_addr().map_err(listen)?;
    let server = NameServer::new(kv, config.order_messages);
    Ok(OpenNamesrv { addr, socket, server, kv_path })
}

/// The page for monitoring, ready to be served.
struct OpenMetrics {
    addr: SocketAddr,
    socket: TcpListener,
    source: Option<Arc<dyn FigureSource>>,
}

fn open_metrics(config: MetricsControlConfig) -> Result<OpenMetrics, StartError> {
    let failed = |error| StartError::Metrics { addr: config.listen, error };
    let socket = net::listen::listen(config.listen, RETRY).map_err(failed)?;
    let addr = socket.local_addr().map_err(failed)?;
    Ok(OpenMetrics { addr, socket, source: config.source })
}

fn read_kv(path: &std::path::Path) -> io::Result<KvTable> {
    match std::fs::read(path) {
        Ok(content) => KvTable::from_json(&content).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(KvTable::default()),
        Err(error) => Err(error),
    }
}

/// A broker that is ready to run.
struct OpenBroker {
    state: Broker,
    parts: BrokerControl,
    namesrv_addrs: Vec<String>,
}

fn restore(
    mut parts: BrokerControl,
    own_namesrv: Option<SocketAddr>,
    epoch_ms: fn() -> i64,
) -> Result<OpenBroker, StartError> {
    let stored = std::mem::take(&mut parts.stored);
    let stored = stored.iter().map(|(key, value)| (&**key, &**value));
    let state = Broker::restore(parts.config.clone(), stored, epoch_ms())?;
    parts.published.catalog.store(Arc::new(state.catalog()));
    parts.published.groups.store(Arc::new(state.views().clone()));
    let mut namesrv_addrs = parts.config.namesrv_addrs.clone();
    namesrv_addrs.extend(own_namesrv.map(|addr| reachable(addr).to_string()));
    namesrv_addrs.sort();
    namesrv_addrs.dedup();
    Ok(OpenBroker { state, parts, namesrv_addrs })
}

/// The address to dial for one that is listened on.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, listen.port())
}

async fn run(
    (namesrv, broker, metrics): (Option<OpenNamesrv>, Option<OpenBroker>, Option<OpenMetrics>),
    epoch_ms: fn() -> i64,
    told: mpsc::Sender<()>,
    stop: watch::Receiver<bool>,
) {
    // The name server outlives the broker, which says good-bye to it.
    let (stop_namesrv, namesrv_stopped) = watch::channel(false);
    let listener = namesrv.map(|namesrv| {
        let listener = Listener::new(namesrv.socket, namesrv.server, namesrv.kv_path);
        spawn_local(async move {
            match listener {
                Ok(listener) => listener.run(namesrv_stopped).await,
                Err(error) => tracing::error!(%error, "the name server cannot run"),
            }
        })
    });
    if let Some(OpenMetrics { socket, source, .. }) = metrics {
        let stop = stop.clone();
        spawn_local(async move {
            if let Err(error) = metrics::serve(socket, source, stop).await {
                tracing::error!(%error, "metrics cannot be served");
            }
        });
    }
    match broker {
        Some(broker) => {
            let OpenBroker { state, parts, namesrv_addrs } = broker;
            let service = Service::new(state, parts, namesrv_addrs, epoch_ms);
            let registered = service.registered();
            spawn_local(async move {
                registered.await;
                // Nobody may be waiting.
                let _ = told.send(());
            });
            service.run(stop).await;
        }
        None => {
            let mut stop = stop;
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }
    stop_namesrv.send_replace(true);
    if let Some(listener) = listener {
        let _ = listener.await;
    }
}
