//! A whole process in parts: data threads, control thread, and the order in which they come and go.
//!
//! Start: listen, open the store, run the data threads, run the control thread on what the store
//! remembers, and only then accept. Stop: say good-bye to the name servers while everything still
//! answers, then refuse, drain, flush, and close.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ringmq_engine::Acknowledge;

use crate::{
    clock,
    config::{BrokerConfig, Config},
    context::{AllowAll, Authorizer},
    control::{
        self, BrokerControl, BrokerControlConfig, ControlConfig, ControlHandle,
        MetricsControlConfig, NamesrvControlConfig, Published, TO_CONTROL_CAPACITY,
    },
    thread::plane::{Plane, Wiring},
};

/// A running broker, name server or both.
pub struct Server {
    plane: Option<Plane>,
    control: Option<ControlHandle>,
    about: Vec<(&'static str, String)>,
}

/// Why a server does not start: one line with cause and cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("about", &self.about).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts what the configuration says. Returns when connections are accepted.
    ///
    /// # Errors
    ///
    /// [`StartError`]; whatever had been started is stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let mut server = Self { plane: None, control: None, about: Vec::new() };
        let broker = match &config.broker {
            Some(broker) => Some(server.start_plane(broker)?),
            None => None,
        };
        let namesrv = config.namesrv.as_ref().map(|namesrv| NamesrvControlConfig {
            listen: namesrv.listen,
            data_dir: namesrv.data.clone(),
            order_messages: namesrv.order_messages,
        });
        let source = server.plane.as_ref().map(Plane::figures);
        let metrics = config.metrics.map(|listen| MetricsControlConfig { listen, source });
        let control = ControlConfig { broker, namesrv, metrics, epoch_ms: clock::epoch_ms };
        match control::start(control) {
            Ok(control) => server.control = Some(control),
            Err(error) => {
                server.stop();
                return Err(StartError(error.to_string()));
            }
        }
        if let Some(plane) = &mut server.plane {
            plane.accept();
        }
        if let (Some(_), Some(_), Some(control)) =
            (&config.namesrv, &config.broker, &server.control)
        {
            // Its own name server is there, so this takes no time, and clients find the broker.
            control.wait_registered();
        }
        server.describe(config);
        Ok(server)
    }

    fn start_plane(&mut self, config: &BrokerConfig) -> Result<BrokerControl, StartError> {
        let published = Arc::new(Published::empty());
        let (to_control, requests) = tokio::sync::mpsc::channel(TO_CONTROL_CAPACITY);
        let authorizer: Arc<dyn Authorizer> = Arc::new(AllowAll);
        let wiring = Wiring { published: published.clone(), authorizer, to_control };
        let mut plane = Plane::start(config.clone(), wiring).map_err(StartError)?;
        let control = BrokerControl {
            config: control_config(&plane.shared.config),
            facts: plane.facts(),
            stored: std::mem::take(&mut plane.stored),
            published,
            requests,
            threads: plane.to_threads.clone(),
        };
        self.plane = Some(plane);
        Ok(control)
    }

    /// What an operator wants to know about the process: name and value.
    pub fn about(&self) -> &[(&'static str, String)] {
        &self.about
    }

    /// Where the broker listens.
    pub fn broker_addr(&self) -> Option<SocketAddr> {
        self.plane.as_ref().map(|plane| plane.local_addr)
    }

    /// Where the broker listens for the VIP channel of old clients, if it does.
    pub fn vip_addr(&self) -> Option<SocketAddr> {
        self.plane.as_ref().and_then(|plane| plane.vip_addr)
    }

    /// Where the name server listens.
    pub fn namesrv_addr(&self) -> Option<SocketAddr> {
        self.control.as_ref().and_then(ControlHandle::namesrv_addr)
    }

    /// Where figures for monitoring are served, if they are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.control.as_ref().and_then(ControlHandle::metrics_addr)
    }

    /// Ready when the process cannot go on. It should be stopped then and end with an error.
    pub async fn failed(&self) {
        match &self.plane {
            Some(plane) => plane.shared.fatal.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Stops cleanly; blocks until the store is flushed and closed. One line for each thing that
    /// went wrong. What was acknowledged is safe in any case.
    pub fn stop(mut self) -> Vec<String> {
        let mut failed = Vec::new();
        if let Some(control) = self.control.take()
            && control.stop().is_err()
        {
            failed.push("the control thread panicked".to_owned());
        }
        if let Some(plane) = &mut self.plane {
            failed.extend(plane.stop());
        }
        failed
    }

    fn describe(&mut self, config: &Config) {
        if let Some(plane) = &self.plane {
            let Shown { broker, data, ack } = Shown::of(plane);
            self.about.push(("broker", broker));
            if let Some(vip) = plane.vip_addr {
                self.about.push(("VIP channel", format!("{vip}, for clients before 4.6")));
            }
            self.about.push(("data", data));
            self.about.push(("acknowledged", ack.to_owned()));
            self.about.extend(plane.notes.iter().map(|note| ("note", note.clone())));
        }
        if let (Some(_), Some(addr)) = (&config.namesrv, self.namesrv_addr()) {
            self.about.push(("name server", addr.to_string()));
        }
        if let Some(addr) = self.metrics_addr() {
            self.about.push(("metrics", format!("http://{addr}/metrics")));
        }
    }
}

/// A broker in words.
struct Shown {
    broker: String,
    data: String,
    ack: &'static str,
}

impl Shown {
    fn of(plane: &Plane) -> Self {
        let config = &plane.shared.config;
        let counted = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        let shards = usize::try_from(plane.shared.shards).unwrap_or(usize::MAX);
        Self {
            broker: format!(
                "{} ({} in {}), clients are told {}",
                plane.local_addr, config.name, config.cluster, config.advertise
            ),
            data: format!(
                "{} ({} on {})",
                config.data.display(),
                counted(shards, "shard"),
                counted(plane.shared.threads, "thread")
            ),
            ack: match plane.acknowledge {
                Acknowledge::Durable => {
                    "when a flush to the device covers the message: it survives a crash and a power cut"
                }
                Acknowledge::Buffered => {
                    "when the message is in shared memory (--ack buffered): it survives a crash of this \
                     process; a power cut or a crash of the system can cost the last moments"
                }
            },
        }
    }
}

fn control_config(config: &BrokerConfig) -> BrokerControlConfig {
    let advertise = config.advertise;
    let ha_port = advertise.port().wrapping_add(1);
    BrokerControlConfig {
        cluster_name: config.cluster.clone(),
        broker_name: config.name.clone(),
        broker_id: config.id,
        advertised_addr: advertise.to_string(),
        ha_server_addr: format!("{}:{ha_port}", Ipv4Addr::from(advertise.ip().octets())),
        namesrv_addrs: config.namesrv_addrs.clone(),
        register_period: config.register_period,
        auto_create_topic: config.auto_create_topic,
        auto_create_group: config.auto_create_group,
        cluster_topic: config.cluster_topic,
        broker_topic: config.broker_topic,
        trace_topic: config.trace_topic,
        trace_topic_name: config.trace_topic_name.clone(),
        default_topic_queue_nums: config.default_topic_queue_nums,
        permission: config.permission,
        notify_consumer_ids_changed: config.notify_consumer_ids_changed,
        compressed_register: config.compressed_register,
        snapshot_dir: Some(config.data.join("config")),
    }
}
