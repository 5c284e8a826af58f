//! The client while brokers are slow, brokers die, and clients die: real processes, and a wire that
//! can be made slow between them.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use ringmq_client::{Client, Message, Producer, admin::NewTopic};
use ringmq_tests::{
    folder::Folder,
    server::{Form, Ringmq, Settings},
    wait::PATIENCE,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const TOPIC: &str = "faults";
const SLOW: &str = "broker-b";
const TASKS: usize = 64;

/// Passes bytes on between clients and one broker; the broker's answers take as long as is told.
struct Wire {
    addr: SocketAddr,
    delay_ms: Arc<AtomicU64>,
}

impl Wire {
    /// A wire to a broker whose address is told later.
    async fn new() -> (Self, tokio::sync::oneshot::Sender<SocketAddr>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, broker) = tokio::sync::oneshot::channel();
        let delay_ms = Arc::new(AtomicU64::new(0));
        let wire = Self { addr: listener.local_addr().unwrap(), delay_ms: Arc::clone(&delay_ms) };
        tokio::spawn(async move {
            let Ok(broker) = broker.await else { return };
            loop {
                let (client, _) = listener.accept().await.unwrap();
                client.set_nodelay(true).unwrap();
                tokio::spawn(pass(client, broker, Arc::clone(&delay_ms)));
            }
        });
        (wire, sender)
    }

    fn delay(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis().try_into().unwrap(), Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, broker: SocketAddr, delay_ms: Arc<AtomicU64>) {
    let Ok(broker) = TcpStream::connect(broker).await else { return };
    broker.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let (sender, mut late) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let forth = async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_broker).await;
    };
    let back = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(len @ 1..) = from_broker.read(&mut buffer).await {
            let delay = Duration::from_millis(delay_ms.load(Ordering::SeqCst));
            let bytes = buffer.get(..len).unwrap_or_default().to_vec();
            let _ = sender.send((Instant::now() + delay, bytes));
        }
    };
    let out = async move {
        while let Some((at, bytes)) = late.recv().await {
            sleep_until(at).await;
            if to_client.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(forth, back, out);
}

/// A name server and three brokers; the second one lies behind a wire.
struct Three {
    namesrv: Ringmq,
    brokers: BTreeMap<&'static str, Ringmq>,
    wire: Wire,
    _folder: Folder,
}

async fn three() -> Three {
    let folder = Folder::new("client-faults");
    let settings =
        Settings { form: Form::Namesrv, ..Settings::new(&folder.path().join("namesrv")) };
    let namesrv = Ringmq::start(&settings);
    let (wire, tell) = Wire::new().await;
    let mut brokers = BTreeMap::new();
    for name in ["broker-a", SLOW, "broker-c"] {
        let mut settings = Settings::new(&folder.path().join(name));
        settings.form = Form::Broker(namesrv.namesrv());
        settings.conf = vec![format!("brokerName={name}"), "brokerClusterName=c".into()];
        if name == SLOW {
            settings.arguments = vec!["--advertise".into(), wire.addr.to_string()];
        }
        brokers.insert(name, Ringmq::start(&settings));
    }
    tell.send(brokers.get(SLOW).unwrap().broker()).unwrap();
    Three { namesrv, brokers, wire, _folder: folder }
}

impl Three {
    /// A client, for which the topic exists on all brokers.
    async fn client(&self) -> Client {
        let client = Client::connect(&self.namesrv.namesrv().to_string()).await.unwrap();
        let all_know = async {
            for broker in self.brokers.values() {
                let addr = broker.broker().to_string();
                client.admin().create_topic(&addr, &NewTopic::new(TOPIC, 4)).await.unwrap();
            }
            while !client.admin().route(TOPIC).await.is_ok_and(|r| r.broker_datas.len() == 3) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all_know).await.unwrap();
        client
    }
}

/// Sends from many tasks for so long; which broker got how many, and how long the longest took.
async fn send_for(
    producer: &Producer,
    tasks: usize,
    time: Duration,
) -> (BTreeMap<String, u64>, Duration) {
    let until = Instant::now() + time;
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let producer = producer.clone();
        running.spawn(async move {
            let (mut counts, mut longest) = (BTreeMap::<String, u64>::new(), Duration::ZERO);
            while Instant::now() < until {
                let started = Instant::now();
                let receipt = producer.send(Message::new(TOPIC, "x")).await.unwrap();
                longest = longest.max(started.elapsed());
                *counts.entry(receipt.queue.broker_name().into()).or_default() += 1;
            }
            (counts, longest)
        });
    }
    let mut all = (BTreeMap::new(), Duration::ZERO);
    while let Some(ended) = running.join_next().await {
        let (counts, longest) = ended.unwrap();
        for (name, count) in counts {
            *all.0.entry(name).or_default() += count;
        }
        all.1 = all.1.max(longest);
    }
    all
}

/// The slow broker's share of the sends. Unit: permille.
fn share(counts: &BTreeMap<String, u64>) -> u64 {
    let all: u64 = counts.values().sum();
    counts.get(SLOW).copied().unwrap_or_default() * 1000 / all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_broker_is_left_out_while_latency_faults_are_on_and_comes_back() {
    let three = three().await;
    let client = three.client().await;
    let producer = client.producer("p").start().unwrap();
    three.wire.delay(Duration::from_secs(2));
    // Tasks end behind the slow broker more often than not, which counts for it.
    let (off, _) = send_for(&producer, TASKS, Duration::from_secs(7)).await;
    assert!((300..=400).contains(&share(&off)), "off, the share stays a third: {off:?}");

    producer.set_latency_faults(true);
    // What is learnt in the first 5 s has to suffice.
    send_for(&producer, TASKS, Duration::from_secs(5)).await;
    let (on, _) = send_for(&producer, TASKS, Duration::from_secs(5)).await;
    assert!(share(&on) < 20, "on, the share is under 2 %: {on:?}");

    three.wire.delay(Duration::ZERO);
    // An answer after 2 s costs 5 s by the rule of 5.x, and one may still be on its way.
    sleep(Duration::from_secs(2 + 5)).await;
    let (back, _) = send_for(&producer, TASKS, Duration::from_secs(2)).await;
    assert!((300..=400).contains(&share(&back)), "and it comes back: {back:?}");
    println!(
        "shares of the slow broker, permille: off {}, on {}, back {}",
        share(&off),
        share(&on),
        share(&back)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_costs_no_error_and_at_most_three_seconds() {
    let mut three = three().await;
    let client = three.client().await;
    let producer = client.producer("p").start().unwrap();
    let sending = {
        let producer = producer.clone();
        tokio::spawn(async move { send_for(&producer, 64, Duration::from_secs(4)).await })
    };
    sleep(Duration::from_secs(1)).await;
    three.brokers.remove("broker-c").unwrap().kill();
    let (counts, longest) = sending.await.unwrap();
    assert!(counts.contains_key("broker-c"), "it took part: {counts:?}");
    assert!(longest <= Duration::from_secs(3), "{longest:?}");
    println!("longest send while a broker was killed: {longest:?}");
}

/// A consumer in a process of its own.
struct Consumer {
    process: Child,
    /// Keys as they come, and when.
    keys: mpsc::Receiver<(u64, Instant)>,
}

impl Consumer {
    fn start(namesrv: SocketAddr, member: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_interop-rust"))
            .args(["consume", "--namesrv", &namesrv.to_string(), "--topic", TOPIC])
            .args(["--group", "readers", "--member", member])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, keys) = mpsc::channel();
        std::thread::spawn(move || {
            // A line that the kill has cut is none.
            for line in lines.map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
                let key = event.get("key").and_then(|key| key.as_str());
                if let Some(key) = key
                    && sender.send((key.parse().unwrap(), Instant::now())).is_err()
                {
                    return;
                }
            }
        });
        Self { process, keys }
    }

    /// Ends the process as a crash does; what it had told besides.
    fn kill(mut self) -> Vec<(u64, Instant)> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.keys.iter().collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_repeats_at_most_one_commit_period() {
    const PER_SECOND: u64 = 10_000;
    /// So much is consumed before the kill: more than can come twice.
    const SEEN_MIN: usize = 150_000;
    /// What the client may hold of each queue, and one pull beyond.
    const HELD_MAX: usize = 4 * (1000 + 32);
    /// The commit period, and the time that a commit may take on a busy machine.
    const COMMIT_TIME: Duration = Duration::from_millis(5000 + 1000);
    let folder = Folder::new("client-killed");
    let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
    let client = Client::connect(&server.namesrv().to_string()).await.unwrap();
    let broker = server.broker().to_string();
    client.admin().create_topic(&broker, &NewTopic::new(TOPIC, 4)).await.unwrap();
    let producer = client.producer("p").send_timeout(PATIENCE).start().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let sending = {
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
                let keys = sent..sent + PER_SECOND / 100;
                sent = keys.end;
                let batch = keys.map(|key| Message::new(TOPIC, "x").key(&key.to_string()));
                producer.send_batch(batch).await.unwrap();
            }
            sent
        })
    };
    let first = Consumer::start(server.namesrv(), "first");
    let mut seen = Vec::new();
    while seen.len() < SEEN_MIN {
        seen.push(first.keys.recv_timeout(PATIENCE).expect("messages come"));
    }
    let killed = Instant::now();
    seen.extend(first.kill());
    let mut all: BTreeSet<_> = seen.iter().map(|(key, _)| *key).collect();
    assert_eq!(all.len(), seen.len(), "nothing comes twice to one who lives");
    let second = Consumer::start(server.namesrv(), "second");
    sleep(Duration::from_secs(2)).await;
    stop.store(true, Ordering::Relaxed);
    let sent = sending.await.unwrap();
    let mut repeats = 0;
    while u64::try_from(all.len()).unwrap() < sent {
        let (key, _) = second.keys.recv_timeout(PATIENCE).expect("nothing is lost");
        repeats += usize::from(!all.insert(key));
    }
    let lately = seen.iter().filter(|(_, at)| killed < *at + COMMIT_TIME).count();
    let bound = lately + HELD_MAX;
    println!("{repeats} of {sent} messages came twice after SIGKILL; allowed are {bound}");
    assert!(repeats <= bound, "{repeats} of {sent} came twice, allowed are {bound}");
    assert!(bound < seen.len(), "the bound says something");
    drop(second.kill());
}
