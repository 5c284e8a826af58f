//! What a process is to be: from the command line, a RocketMQ `broker.conf` and defaults.
//!
//! A flag beats the file, the file beats the default. The result is plain data that the rest of the
//! server takes as it is; whatever deserves a word to the operator is in [`Config::notes`] and is
//! printed once at start.
//!
//! Elsewhere: flags in [`cli`], the file and its table of keys in [`mod@file`].

pub mod cli;
pub mod file;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use crate::{
    control::QUEUES_PER_TOPIC_MAX,
    namesrv::{BROKER_TEXT_LEN_MAX, check_name},
};

use self::{
    cli::{BlockSize, Cli, DISK_BUDGET_FORMS, DiskBudget},
    file::Properties,
};

/// Shards of a new store where nobody asks for a number.
pub const SHARDS_DEFAULT: u32 = 1;

/// Most shards that may be asked for.
pub const SHARDS_MAX: u32 = 1024;

/// Most data threads that may be asked for.
pub const THREADS_MAX: usize = 1024;

/// Everything a process needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The broker, unless this process is only a name server.
    pub broker: Option<BrokerConfig>,
    /// The name server, unless this process is only a broker.
    pub namesrv: Option<NamesrvConfig>,
    /// Where figures for monitoring are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Remarks for the operator, one line each.
    pub notes: Vec<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// When a message counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ack {
    /// Acknowledged when a flush of the device covers it.
    Durable,
    /// Acknowledged when it is in memory that survives the process, but not the system: what
    /// upstream's ASYNC_FLUSH promises.
    Buffered,
}

impl From<Ack> for ringmq_engine::Acknowledge {
    fn from(ack: Ack) -> Self {
        match ack {
            Ack::Durable => Self::Durable,
            Ack::Buffered => Self::Buffered,
        }
    }
}

/// A broker.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `brokerName`.
    pub name: String,
    /// `brokerClusterName`.
    pub cluster: String,
    /// `brokerId`, 0: the broker is a master.
    pub id: u64,
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// `vipChannelEnable`: whether it listens two ports below as well, for old clients.
    pub vip_channel: bool,
    /// What clients dial, if it is not what it listens on. Port 0: the listening port.
    pub advertise: SocketAddrV4,
    /// Name servers, `host:port` each, besides the one in this process.
    pub namesrv_addrs: Vec<String>,
    /// Folder of the store, made if missing.
    pub data: PathBuf,
    /// Shards of a new store; an existing one keeps its number.
    pub shards: Option<u32>,
    /// Data threads; at most as many as shards are used.
    pub threads: Option<usize>,
    /// Block length of a new store in bytes; `None` asks the device.
    pub block_len: Option<u32>,
    /// Size of the log segments of a new store in bytes; `None` takes the engine's default.
    pub segment_len: Option<u64>,
    /// What the store may take of the disk; `None` takes what it was given at its creation.
    pub disk_budget: Option<DiskBudget>,
    /// What an acknowledgement means; `None` takes what the store has, a new one is durable.
    pub ack: Option<Ack>,
    /// Folder in memory for what a buffered store has not on the device yet; `None` takes the engine's
    /// default.
    pub buffer_dir: Option<PathBuf>,
    /// `fileReservedTime`: age at which messages are given up, a segment at a time.
    pub message_age: Duration,
    /// Memory of each shard.
    pub memory: ShardMemory,
    /// `autoCreateTopicEnable`.
    pub auto_create_topic: bool,
    /// `autoCreateSubscriptionGroup`.
    pub auto_create_group: bool,
    /// `defaultTopicQueueNums`.
    pub default_topic_queue_nums: u32,
    /// `maxMessageSize` in bytes, bodies and whole batches.
    pub message_len_max: usize,
    /// `brokerPermission`: 4 read, 2 write, 6 both.
    pub permission: u32,
    /// How long a pull may be held at most: its own wish (`None`), or `shortPollingTimeMills`
    /// where `longPollingEnable` is false.
    pub short_polling: Option<Duration>,
    /// `clusterTopicEnable`.
    pub cluster_topic: bool,
    /// `brokerTopicEnable`.
    pub broker_topic: bool,
    /// `traceTopicEnable`.
    pub trace_topic: bool,
    /// `msgTraceTopicName`.
    pub trace_topic_name: String,
    /// `traceOn`: whether answers to sends ask clients to trace.
    pub trace_on: bool,
    /// `regionId`, told in answers to sends.
    pub region: String,
    /// `notifyConsumerIdsChangedEnable`.
    pub notify_consumer_ids_changed: bool,
    /// `compressedRegister`.
    pub compressed_register: bool,
    /// `registerNameServerPeriod`, 10 to 60 s.
    pub register_period: Duration,
    /// Most messages of one pull.
    pub pull_count_max: u32,
    /// Most bytes of one pull; a single message may exceed it.
    pub pull_bytes_max: usize,
    /// Bounds of memory and time for connections.
    pub limits: Limits,
}

/// What each shard may keep in memory, with the key in `broker.conf` that sets each. Unit: bytes;
/// `None` takes the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardMemory {
    /// `shardTailMemory`: groups that are written, and the most recent ones.
    pub tail: Option<usize>,
    /// `shardLargeMemory`: groups that are longer than usual ones.
    pub large: Option<usize>,
    /// `shardReadMemory`: what was read back from the device. By default the shards share an eighth
    /// of the machine's memory, at most 4 GiB.
    pub read: Option<usize>,
}

/// Bounds of what connections may hold, with the key in `broker.conf` that sets each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `handOverEntries`: requests outstanding from one data thread to another.
    pub link_entries: usize,
    /// `receiveBudget`: bytes of receive buffers over 4 KiB, of all connections.
    pub receive_bytes: usize,
    /// `outputBudget`: bytes of answers that wait to be written, of all connections.
    pub output_bytes: usize,
    /// `connectionOutputBudget`: bytes of answers that wait to be written, of one connection.
    pub conn_output_bytes: usize,
    /// `writeTimeoutMillis`: a connection whose socket takes no byte for so long is closed.
    pub write_timeout: Duration,
    /// `frameTimeoutMillis`: a connection whose frame over 4 KiB does not arrive in this time is
    /// closed.
    pub frame_timeout: Duration,
    /// `serverChannelMaxIdleTimeSeconds`: a connection without a byte either way for so long is
    /// closed.
    pub idle_timeout: Duration,
    /// `maxConnections`: connections accepted at a time.
    pub conns: usize,
    /// `connectionHeldPulls`: pulls of one connection that wait for messages at a time.
    pub conn_held_pulls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            link_entries: 1024,
            receive_bytes: 256 << 20,
            output_bytes: 256 << 20,
            conn_output_bytes: 1 << 20,
            write_timeout: Duration::from_secs(30),
            frame_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(120),
            conns: 15_000,
            conn_held_pulls: 8_192,
        }
    }
}

/// A name server.
#[derive(Clone, Debug)]
pub struct NamesrvConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Folder of its key-value configuration.
    pub data: PathBuf,
    /// `orderMessageEnable`.
    pub order_messages: bool,
}

/// Why a configuration does not work, one line with cause and cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// A [`ConfigError`] from its line.
pub(crate) fn invalid(line: impl Into<String>) -> ConfigError {
    ConfigError(line.into())
}

impl Config {
    /// The configuration of a command line, with the file that it names.
    ///
    /// # Errors
    ///
    /// One line that names the flag or key and what it takes.
    pub fn load(cli: &Cli) -> Result<Self, ConfigError> {
        let properties = match cli.config_file() {
            Some(path) => Properties::read(path)?,
            None => Properties::default(),
        };
        Self::build(cli, properties)
    }

    fn build(cli: &Cli, mut properties: Properties) -> Result<Self, ConfigError> {
        let flags = &cli.flags;
        let data = flags
            .data
            .clone()
            .or_else(|| properties.text("storePathRootDir").map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from("ringmq-data"));
        let order_messages = properties.flag("orderMessageEnable", false)?;
        let namesrv = cli.runs_namesrv().then(|| NamesrvConfig {
            listen: flags.namesrv_listen,
            data: data.join("namesrv"),
            order_messages,
        });
        let broker = match cli.runs_broker() {
            true => Some(broker(cli, &mut properties, data)?),
            false => None,
        };
        let mut notes = properties.notes();
        if let Some(broker) = &broker
            && broker.namesrv_addrs.is_empty()
            && !cli.runs_namesrv()
        {
            notes.push(
                "no name server is given (-n HOST:PORT): clients cannot find this broker"
                    .to_owned(),
            );
        }
        if let Some(broker) = &broker
            && broker.listen.ip().is_unspecified()
        {
            notes.push(format!(
                "listening on every address; clients are told {} (--advertise changes that)",
                broker.advertise.ip()
            ));
        }
        Ok(Self {
            broker,
            namesrv,
            metrics: flags.metrics_listen,
            log_format: flags.log_format,
            notes,
        })
    }
}

fn broker(cli: &Cli, file: &mut Properties, data: PathBuf) -> Result<BrokerConfig, ConfigError> {
    refuse_what_is_not_there(file)?;
    let flags = &cli.flags;
    let listen = listen_addr(flags.listen, file)?;
    let advertise = advertised(flags.advertise.as_deref(), file, listen)?;
    let long_polling = file.flag("longPollingEnable", true)?;
    let short_polling =
        Duration::from_millis(file.ranged("shortPollingTimeMills", 1000, 0, 3_600_000)?);
    // Upstream takes any number as well, and what is nearest of 10 to 60 s.
    let register_millis: u64 = file.ranged("registerNameServerPeriod", 30_000, 0, 86_400_000)?;
    Ok(BrokerConfig {
        name: name(file, "brokerName")?.unwrap_or_else(host_name),
        cluster: name(file, "brokerClusterName")?.unwrap_or_else(|| "DefaultCluster".to_owned()),
        id: 0,
        listen,
        vip_channel: file.flag("vipChannelEnable", true)?,
        advertise,
        namesrv_addrs: namesrv_addrs(cli, file)?,
        data,
        shards: flags.shards.or(file.within("shards", 1, SHARDS_MAX)?),
        threads: flags.threads.or(file.within("threads", 1, THREADS_MAX)?),
        block_len: flags.block_size.0.or(block_len(file)?),
        segment_len: file.within("segmentSize", 1 << 20, 2 << 30)?,
        disk_budget: flags.disk_budget.or(file.optional("diskBudget", DISK_BUDGET_FORMS)?),
        ack: ack(flags.ack, file)?,
        buffer_dir: flags.buffer_dir.clone(),
        message_age: hours(file.ranged("fileReservedTime", 72, 1, 1_000_000)?),
        memory: ShardMemory {
            tail: memory(file, "shardTailMemory")?,
            large: memory(file, "shardLargeMemory")?,
            read: memory(file, "shardReadMemory")?,
        },
        auto_create_topic: file.flag("autoCreateTopicEnable", true)?,
        auto_create_group: file.flag("autoCreateSubscriptionGroup", true)?,
        default_topic_queue_nums: file.ranged(
            "defaultTopicQueueNums",
            8,
            1,
            QUEUES_PER_TOPIC_MAX,
        )?,
        message_len_max: file.ranged("maxMessageSize", 4 << 20, 1, 8 << 20)?,
        permission: file.ranged("brokerPermission", 6, 0, 6)?,
        short_polling: (!long_polling).then_some(short_polling),
        cluster_topic: file.flag("clusterTopicEnable", true)?,
        broker_topic: file.flag("brokerTopicEnable", true)?,
        trace_topic: file.flag("traceTopicEnable", false)?,
        trace_topic_name: file
            .text("msgTraceTopicName")
            .unwrap_or_else(|| "RMQ_SYS_TRACE_TOPIC".to_owned()),
        trace_on: file.flag("traceOn", true)?,
        region: region(file)?,
        notify_consumer_ids_changed: file.flag("notifyConsumerIdsChangedEnable", true)?,
        compressed_register: file.flag("compressedRegister", false)?,
        register_period: Duration::from_millis(register_millis.clamp(10_000, 60_000)),
        pull_count_max: file.ranged("maxTransferCountOnMessageInMemory", 32, 1, 1024)?,
        pull_bytes_max: file.ranged(
            "maxTransferBytesOnMessageInMemory",
            256 << 10,
            1024,
            8 << 20,
        )?,
        limits: limits(file)?,
    })
}

/// An amount of memory that a shard can work with.
fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

fn memory(file: &mut Properties, key: &str) -> Result<Option<usize>, ConfigError> {
    const MIN: usize = 16 << 20;
    const MAX: usize = 1 << 40;
    file.within(key, MIN, MAX)
}

/// As the flag takes it.
fn block_len(file: &mut Properties) -> Result<Option<u32>, ConfigError> {
    let size: Option<BlockSize> = file.optional("blockSize", "auto, 512 or 4096")?;
    Ok(size.unwrap_or_default().0)
}

/// A name that name servers take.
fn name(file: &mut Properties, key: &str) -> Result<Option<String>, ConfigError> {
    let Some(entry) = file.entry(key) else { return Ok(None) };
    match check_name(&entry.text) {
        Ok(()) => Ok(Some(entry.text)),
        Err(_) => Err(file.wrong(
            key,
            &entry,
            format_args!("1 to {BROKER_TEXT_LEN_MAX} bytes without slashes and control characters"),
        )),
    }
}

/// The region stands in every answer to a send, so it has to be plain text in JSON.
fn region(file: &mut Properties) -> Result<String, ConfigError> {
    let Some(region) = file.entry("regionId") else { return Ok("DefaultRegion".to_owned()) };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if region.text.bytes().all(plain) {
        Ok(region.text)
    } else {
        Err(file.wrong("regionId", &region, "letters, digits, `-`, `_` and `.`"))
    }
}

/// Keys whose meaning this broker cannot give. Going on without would be worse than not starting.
fn refuse_what_is_not_there(file: &mut Properties) -> Result<(), ConfigError> {
    let place = file.place("aclEnable");
    if file.flag("aclEnable", false)? {
        return Err(invalid(
            place
                + "aclEnable=true: access control is not available in this version, and running without \
             would let everyone in; remove the key, and keep the port private",
        ));
    }
    let place = file.place("enableDLegerCommitLog");
    if file.flag("enableDLegerCommitLog", false)? {
        return Err(invalid(
            place
                + "enableDLegerCommitLog=true: replication is not available in this version; remove the \
             key to run a broker of its own",
        ));
    }
    let place = file.place(if file.peek("brokerId").is_some() { "brokerId" } else { "brokerRole" });
    let role = file.text("brokerRole").unwrap_or_else(|| "ASYNC_MASTER".to_owned());
    let id: u64 = file.ranged("brokerId", 0, 0, u64::MAX)?;
    if role == "SLAVE" || id != 0 {
        return Err(invalid(format!(
            "{place}brokerRole={role}, brokerId={id}: slaves are not available in this version; a second \
             broker takes another brokerName and brokerId=0",
        )));
    }
    Ok(())
}

/// The flag beats `flushDiskType`. SYNC_FLUSH is what a durable store does. ASYNC_FLUSH stands in every
/// file that was copied from upstream's, and durable answers are fast enough: less is promised only to
/// who asks for it by the flag.
fn ack(flag: Option<Ack>, file: &mut Properties) -> Result<Option<Ack>, ConfigError> {
    let Some(entry) = file.entry("flushDiskType") else { return Ok(flag) };
    match (entry.text.as_str(), flag) {
        ("SYNC_FLUSH", None) => Ok(Some(Ack::Durable)),
        ("SYNC_FLUSH", Some(Ack::Buffered)) => {
            file.note("flushDiskType=SYNC_FLUSH: gives way to --ack buffered");
            Ok(flag)
        }
        ("ASYNC_FLUSH", None) => {
            file.note(
                "flushDiskType=ASYNC_FLUSH: a store promises more and acknowledges after a flush, \
                 unless --ack buffered says otherwise",
            );
            Ok(None)
        }
        ("SYNC_FLUSH" | "ASYNC_FLUSH", Some(_)) => Ok(flag),
        _ => Err(file.wrong("flushDiskType", &entry, "SYNC_FLUSH or ASYNC_FLUSH")),
    }
}

fn limits(file: &mut Properties) -> Result<Limits, ConfigError> {
    let usual = Limits::default();
    let millis = |value: Duration| u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    Ok(Limits {
        link_entries: file.ranged(
            "handOverEntries",
            usual.link_entries,
            crate::link::ENTRIES_MIN,
            crate::link::ENTRIES_MAX,
        )?,
        receive_bytes: file.ranged("receiveBudget", usual.receive_bytes, 32 << 20, 1 << 40)?,
        output_bytes: file.ranged("outputBudget", usual.output_bytes, 16 << 20, 1 << 40)?,
        conn_output_bytes: file.ranged(
            "connectionOutputBudget",
            usual.conn_output_bytes,
            64 << 10,
            1 << 30,
        )?,
        write_timeout: Duration::from_millis(file.ranged(
            "writeTimeoutMillis",
            millis(usual.write_timeout),
            100,
            3_600_000,
        )?),
        frame_timeout: Duration::from_millis(file.ranged(
            "frameTimeoutMillis",
            millis(usual.frame_timeout),
            100,
            3_600_000,
        )?),
        idle_timeout: Duration::from_secs(file.ranged(
            "serverChannelMaxIdleTimeSeconds",
            usual.idle_timeout.as_secs(),
            1,
            86_400,
        )?),
        conns: file.ranged("maxConnections", usual.conns, 1, 10_000_000)?,
        conn_held_pulls: file.ranged("connectionHeldPulls", usual.conn_held_pulls, 1, 1 << 20)?,
    })
}

/// The flag; else `bindAddress` and `listenPort`; else loopback, unless `brokerIP1` says that others
/// are to reach this broker.
fn listen_addr(flag: Option<SocketAddr>, file: &mut Properties) -> Result<SocketAddr, ConfigError> {
    let port: u16 = file.ranged("listenPort", 10_911, 0, u16::MAX)?;
    let bind: Option<IpAddr> = file.optional("bindAddress", "an IP address")?;
    let for_others = file
        .peek("brokerIP1")
        .and_then(|text| text.parse::<IpAddr>().ok())
        .is_some_and(|address| !address.is_loopback());
    let usual = if for_others { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    Ok(flag.unwrap_or_else(|| SocketAddr::new(bind.unwrap_or(IpAddr::V4(usual)), port)))
}

/// What clients are told to dial. Always an IPv4 address, since it goes into every record.
fn advertised(
    flag: Option<&str>,
    file: &mut Properties,
    listen: SocketAddr,
) -> Result<SocketAddrV4, ConfigError> {
    let place = file.place("brokerIP1");
    let broker_ip = file.text("brokerIP1");
    if let Some(text) = flag {
        return resolve(text, &format!("--advertise {text}"));
    }
    if let Some(text) = broker_ip {
        return resolve(&text, &format!("{place}brokerIP1={text}"));
    }
    match listen.ip() {
        IpAddr::V4(address) if !address.is_unspecified() => Ok(SocketAddrV4::new(address, 0)),
        IpAddr::V6(address) if !address.is_unspecified() => Err(invalid(format!(
            "listening on {listen}, which no IPv4 address reaches, and clients are told no other \
             kind: listen on an IPv4 address, on [::] for both, or pass --advertise HOST"
        ))),
        _ => match first_public_v4() {
            Some(address) => Ok(SocketAddrV4::new(address, 0)),
            None => Err(invalid(format!(
                "listening on {listen}, but no IPv4 address to tell clients was found: pass \
                 --advertise HOST"
            ))),
        },
    }
}

/// `HOST` or `HOST:PORT`; port 0 stands for "as it listens". Errors begin with `option`.
fn resolve(text: &str, option: &str) -> Result<SocketAddrV4, ConfigError> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (
            host,
            port.parse::<u16>()
                .map_err(|_| invalid(format!("{option}: takes HOST or HOST:PORT, 0 to 65535")))?,
        ),
        None => (text, 0),
    };
    let found = (host, port)
        .to_socket_addrs()
        .map_err(|error| invalid(format!("{option}: the host is not known here ({error})")))?;
    found
        .into_iter()
        .find_map(|address| match address {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        })
        .ok_or_else(|| {
            invalid(format!("{option}: has no IPv4 address, and records carry no other kind"))
        })
}

/// The first address of this machine that is not loopback: the one that the default route leaves
/// from, else the first that the kernel lists.
fn first_public_v4() -> Option<Ipv4Addr> {
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let routed = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(("192.0.2.1", 9)).and_then(|()| socket.local_addr()))
        .ok()
        .and_then(|address| match address.ip() {
            IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => {
                Some(address)
            }
            _ => None,
        });
    routed.or_else(|| local_v4(&std::fs::read_to_string("/proc/net/fib_trie").ok()?))
}

/// The first local address in the text of `/proc/net/fib_trie` that is not loopback. An address line
/// is followed by `/32 host LOCAL`.
fn local_v4(fib_trie: &str) -> Option<Ipv4Addr> {
    let lines: Vec<&str> = fib_trie.lines().map(str::trim).collect();
    lines.windows(2).find_map(|pair| {
        let [address, kind] = pair else { return None };
        let address: Ipv4Addr = address.strip_prefix("|-- ")?.parse().ok()?;
        (*kind == "/32 host LOCAL" && !address.is_loopback()).then_some(address)
    })
}

fn namesrv_addrs(cli: &Cli, file: &mut Properties) -> Result<Vec<String>, ConfigError> {
    let place = file.place("namesrvAddr");
    let from_file = file.text("namesrvAddr");
    let (place, text) = match (cli.namesrv(), from_file) {
        (Some(flag), _) => (String::new(), flag.to_owned()),
        (None, Some(text)) => (place, text),
        (None, None) => return Ok(Vec::new()),
    };
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    let checked = parts.map(|part| {
        let port =
            part.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(' '));
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(_) => Ok(part.to_owned()),
            None => Err(invalid(format!(
                "{place}name server `{part}`: not an address; give HOST:PORT, several separated by `;`"
            ))),
        }
    });
    checked.collect()
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' })
        .collect();
    if name.is_empty() { "ringmq".to_owned() } else { name }
}

#[cfg(test)]
mod tests;
