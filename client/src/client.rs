//! The client: what producers and consumers share.
//!
//! A client keeps the routes of topics in use fresh, tells brokers about its groups, and holds the
//! connections. One task does the upkeep; it ends when the last handle is dropped.
//!
//! Elsewhere: where topics are is in `routes`, who is registered where in `groups`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::AbortHandle,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout_at},
};

use self::{groups::Groups, routes::Routes, servers::AddressServer};
use crate::{
    Error, PopConsumerBuilder, ProducerBuilder, PullConsumerBuilder, PushConsumerBuilder,
    admin::Admin,
    namespace::Namespace,
    producer::{Checks, Requests},
    remoting::{Credentials, Remoting, Security},
    unique::UniqueIds,
};

mod groups;
mod offsets;
mod routes;
mod servers;

pub(crate) use groups::{Group, Membership};

/// A client of one cluster: the way to its brokers, and what its producers and consumers share.
///
/// Cheap to clone; all clones are one client. An application normally has one, however many
/// producers and consumers it needs.
///
/// ```no_run
/// # async fn example() -> Result<(), ringmq_client::Error> {
/// use ringmq_client::Client;
///
/// let client = Client::connect("127.0.0.1:9876").await?;
/// let producer = client.producer("orders-producer").start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// How a client is set up. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    name_servers: String,
    instance_name: Option<String>,
    namespace: String,
    call_timeout: Duration,
    upkeep_period: Duration,
    address_server: Option<String>,
    address_period: Duration,
    security: Security,
}

/// The client behind its handles.
pub(crate) struct Shared {
    pub(crate) remoting: Remoting,
    pub(crate) routes: Routes,
    pub(crate) groups: Groups,
    pub(crate) unique_ids: UniqueIds,
    pub(crate) checks: Checks,
    pub(crate) requests: Requests,
    pub(crate) client_id: String,
    /// Names this client among those of its host, the same after a restart: `ip@instance`.
    pub(crate) stable_id: String,
    pub(crate) namespace: Namespace,
    /// For calls that have no time of their own.
    pub(crate) call_timeout: Duration,
    is_closed: AtomicBool,
    upkeep: OnceLock<AbortHandle>,
}

impl Client {
    /// Connects with the default settings.
    ///
    /// `name_servers` is a list `host:port;host:port`, as everywhere in RocketMQ.
    ///
    /// # Errors
    ///
    /// [`Invalid::NameServers`](crate::Invalid::NameServers), or [`Error::Connect`] if none of them can be reached.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::Error> {
    /// let client = ringmq_client::Client::connect("10.0.0.1:9876;10.0.0.2:9876").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(name_servers: &str) -> Result<Self, Error> {
        Self::builder(name_servers).connect().await
    }

    /// Starts from the default settings.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    /// use ringmq_client::Client;
    ///
    /// let client = Client::builder("127.0.0.1:9876")
    ///     .call_timeout(Duration::from_secs(10))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(name_servers: &str) -> ClientBuilder {
        ClientBuilder {
            name_servers: name_servers.into(),
            instance_name: None,
            namespace: String::new(),
            call_timeout: Duration::from_secs(3),
            upkeep_period: Duration::from_secs(30),
            address_server: None,
            address_period: Duration::from_secs(120),
            security: Security::default(),
        }
    }

    /// Sets up a producer of this group.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").retries(1).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn producer(&self, group: &str) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), group)
    }

    /// Sets up a pull consumer of this group.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pull_consumer("orders-consumer").topic("TopicTest").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pull_consumer(&self, group: &str) -> PullConsumerBuilder {
        PullConsumerBuilder::new(self.clone(), group)
    }

    /// Sets up a push consumer of this group: a member whose messages go to a listener.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Delivery;
    ///
    /// let consumer = client
    ///     .push_consumer("orders-consumer")
    ///     .subscribe("TopicTest", "*")
    ///     .start(|delivery: Delivery| async move { println!("{}", delivery.len()) })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn push_consumer(&self, group: &str) -> PushConsumerBuilder {
        PushConsumerBuilder::new(self.clone(), group)
    }

    /// Sets up a POP consumer of this group: brokers of 5.x keep track of each of its messages.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let consumer = client.pop_consumer("thumbnails").subscribe("Images", "*").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_consumer(&self, group: &str) -> PopConsumerBuilder {
        PopConsumerBuilder::new(self.clone(), group)
    }

    /// What administrators ask and change: clusters, topics, offsets, single messages.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// println!("{:?}", client.admin().topics().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// By what name brokers know this client: `ip@process#number`, unless set.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) {
    /// println!("connected as {}", client.client_id());
    /// # }
    /// ```
    pub fn client_id(&self) -> &str {
        &self.shared.client_id
    }

    /// Leaves all groups, writes what is queued and closes the connections. Calls from then on end
    /// with [`Error::Closed`]. Shut producers and consumers down first: their messages and offsets
    /// are not waited for here.
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`] if a broker has not answered by the deadline. The connections are
    /// closed all the same, and the broker will notice.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// client.shutdown(std::time::Duration::from_secs(3)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        let until = Instant::now() + deadline;
        if self.shared.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(upkeep) = self.shared.upkeep.get() {
            upkeep.abort();
        }
        let left = timeout_at(until, self.shared.leave_all(until)).await;
        self.shared.remoting.close(until).await;
        left.map_err(|_| Error::Unfinished { deadline })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("client_id", &self.shared.client_id).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Names this client among those of its host, in place of `process#number`. Two clients with
    /// one name and address count as one member of a group, so each needs its own.
    ///
    /// ```
    /// let builder = ringmq_client::Client::builder("127.0.0.1:9876").instance_name("billing-1");
    /// ```
    pub fn instance_name(mut self, name: &str) -> Self {
        self.instance_name = Some(name.into());
        self
    }

    /// Puts a namespace before all topics and groups of this client, as upstream's clients do: brokers
    /// see `namespace%topic`, the application sees `topic`. None unless set.
    ///
    /// ```
    /// let builder = ringmq_client::Client::builder("127.0.0.1:9876").namespace("tenant-7");
    /// ```
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = name.into();
        self
    }

    /// Takes the list of name servers from a page on an HTTP server, and looks there again every two
    /// minutes: `host`, `host:port`, or `http://host:port/path`. What is left out is upstream's, port
    /// 8080 and path `/rocketmq/nsaddr`. A list that is given as well is used until then.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::Error> {
    /// let builder = ringmq_client::Client::builder("").address_server("addresses.example");
    /// let client = builder.connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn address_server(mut self, place: &str) -> Self {
        self.address_server = Some(place.into());
        self
    }

    /// How often the [address server](ClientBuilder::address_server) is asked; 120 s unless set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder = ringmq_client::Client::builder("").address_period(Duration::from_secs(30));
    /// ```
    pub const fn address_period(mut self, period: Duration) -> Self {
        self.address_period = period;
        self
    }

    /// Signs all requests with this user's secret, for brokers with access control: access key and
    /// secret key of 4.9, user name and password of 5.x.
    ///
    /// ```
    /// let builder = ringmq_client::Client::builder("127.0.0.1:9876").credentials("app", "secret");
    /// ```
    pub fn credentials(mut self, access_key: &str, secret_key: &str) -> Self {
        self.security.credentials = Some(Credentials {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            security_token: None,
        });
        self
    }

    /// Adds a temporary token to the [credentials](ClientBuilder::credentials), which come first.
    ///
    /// ```
    /// let builder = ringmq_client::Client::builder("127.0.0.1:9876")
    ///     .credentials("app", "secret")
    ///     .security_token("token");
    /// ```
    pub fn security_token(mut self, token: &str) -> Self {
        if let Some(credentials) = &mut self.security.credentials {
            credentials.security_token = Some(token.into());
        }
        self
    }

    /// Connects to name servers and brokers by TLS. Plain connections unless set.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// use ringmq_client::{Client, Tls};
    ///
    /// let tls = Tls::trusting(&std::fs::read("ca.pem")?)?;
    /// let builder = Client::builder("127.0.0.1:9876").tls(tls);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::Tls) -> Self {
        self.security.tls = Some(tls);
        self
    }

    /// How long a request may take that has no time of its own; 3 s unless set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder =
    ///     ringmq_client::Client::builder("127.0.0.1:9876").call_timeout(Duration::from_secs(10));
    /// ```
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How often routes are refreshed and heartbeats sent; 30 s unless set. Brokers forget a client
    /// after 120 s without a heartbeat.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let builder =
    ///     ringmq_client::Client::builder("127.0.0.1:9876").upkeep_period(Duration::from_secs(5));
    /// ```
    pub const fn upkeep_period(mut self, period: Duration) -> Self {
        self.upkeep_period = period;
        self
    }

    /// Connects to one of the name servers, a random one first.
    ///
    /// # Errors
    ///
    /// [`Invalid::NameServers`](crate::Invalid::NameServers) or [`Invalid::AddressServer`](crate::Invalid::AddressServer) if what was given is none,
    /// [`Error::Connect`] if none of the name servers can be reached, or the address server if there
    /// is no list but its.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), ringmq_client::Error> {
    /// let client = ringmq_client::Client::builder("127.0.0.1:9876").connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(self) -> Result<Client, Error> {
        let source = self.address_server.as_deref().map(AddressServer::parse).transpose()?;
        let servers = match &source {
            Some(source) if self.name_servers.is_empty() => {
                let fetched = source.fetch().await;
                let addr = self.address_server.clone().unwrap_or_default();
                fetched.map_err(|source| Error::Connect { addr, source })?
            }
            _ => servers::parse(&self.name_servers)?,
        };
        let (ip, first) = reachable(&servers).await?;
        let process_id = std::process::id();
        let stable_id = format!("{ip}@{}", self.instance_name.as_deref().unwrap_or("DEFAULT"));
        let name = self
            .instance_name
            .unwrap_or_else(|| format!("{process_id}#{}", crate::unique::random() >> 1));
        let shared = Arc::new_cyclic(|shared| Shared {
            remoting: Remoting::new(Weak::clone(shared), self.security),
            routes: Routes::new(servers, first),
            groups: Groups::default(),
            unique_ids: UniqueIds::new(ip, process_id),
            checks: Checks::default(),
            requests: Requests::default(),
            client_id: format!("{ip}@{name}"),
            stable_id,
            namespace: Namespace::new(&self.namespace),
            call_timeout: self.call_timeout,
            is_closed: AtomicBool::new(false),
            upkeep: OnceLock::new(),
        });
        // An interval of zero would panic.
        let period = self.upkeep_period.max(Duration::from_millis(1));
        let source = source.map(|source| (source, self.address_period));
        let task = tokio::spawn(upkeep(Arc::downgrade(&shared), period, source));
        shared.upkeep.get_or_init(|| task.abort_handle());
        Ok(Client { shared })
    }
}

/// The address of this host as the name servers see it, and which of them answered first.
async fn reachable(servers: &[String]) -> Result<(IpAddr, usize), Error> {
    let count = u64::try_from(servers.len()).unwrap_or(u64::MAX);
    let start = usize::try_from(crate::unique::random() % count).unwrap_or_default();
    let order = (start..servers.len()).chain(0..start);
    let mut failure = Error::Closed;
    for (at, addr) in order.filter_map(|at| servers.get(at).map(|addr| (at, addr))) {
        let connect = tokio::net::TcpStream::connect(addr.as_str());
        let attempt = tokio::time::timeout(Duration::from_secs(3), connect).await;
        match attempt.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                let ip = stream.local_addr().map(|addr| addr.ip().to_canonical());
                return Ok((ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), at));
            }
            Err(source) => failure = Error::Connect { addr: addr.clone(), source },
        }
    }
    Err(failure)
}

/// Shortest time between two looks at doubted routes.
const DOUBT_PAUSE: Duration = Duration::from_millis(200);

/// What the upkeep does next.
enum Chore {
    All,
    Heartbeat,
    Doubts,
    NameServers,
}

/// Refreshes routes and sends heartbeats, each period and when someone asks for it.
async fn upkeep(shared: Weak<Shared>, period: Duration, source: Option<(AddressServer, Duration)>) {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_doubt = Instant::now();
    let mut next_fetch = source.as_ref().map(|(_, period)| Instant::now() + *period);
    loop {
        let wakes = shared.upgrade().map(|shared| (shared.groups.beat(), shared.routes.doubts()));
        let Some((beat, doubt)) = wakes else { return };
        let doubted = async {
            sleep_until(next_doubt).await;
            doubt.notified().await;
        };
        let fetch = async {
            match next_fetch {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let chore = tokio::select! {
            () = fetch => Chore::NameServers,
            _ = ticks.tick() => Chore::All,
            () = beat.notified() => Chore::Heartbeat,
            () = doubted => Chore::Doubts,
        };
        let Some(shared) = shared.upgrade() else { return };
        match chore {
            Chore::All => {
                shared.refresh_routes().await;
                shared.heartbeat().await;
            }
            Chore::Heartbeat => shared.heartbeat().await,
            Chore::Doubts => {
                shared.settle_doubts().await;
                next_doubt = Instant::now() + DOUBT_PAUSE;
            }
            Chore::NameServers => {
                let Some((source, period)) = &source else { continue };
                match source.fetch().await {
                    Ok(servers) => shared.routes.servers.replace(servers),
                    Err(error) => tracing::debug!(%error, "kept the name servers"),
                }
                next_fetch = Some(Instant::now() + *period);
            }
        }
    }
}

impl Shared {
    /// When a call that starts now has to be done.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// # Errors
    ///
    /// [`Error::Closed`] after the shutdown.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(upkeep) = self.upkeep.get() {
            upkeep.abort();
        }
    }
}
