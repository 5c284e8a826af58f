//! What the tests of the control plane and the name server share.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{BrokerControlConfig, broker::Broker};

/// A broker with the defaults of upstream and no name servers.
pub(crate) fn broker_config() -> BrokerControlConfig {
    BrokerControlConfig {
        cluster_name: "DefaultCluster".into(),
        broker_name: "broker-a".into(),
        broker_id: 0,
        advertised_addr: "127.0.0.1:10911".into(),
        ha_server_addr: "127.0.0.1:10912".into(),
        namesrv_addrs: Vec::new(),
        register_period: Duration::from_secs(30),
        auto_create_topic: true,
        auto_create_group: true,
        cluster_topic: true,
        broker_topic: true,
        trace_topic: false,
        trace_topic_name: "RMQ_SYS_TRACE_TOPIC".into(),
        default_topic_queue_nums: 8,
        permission: 6,
        notify_consumer_ids_changed: true,
        compressed_register: false,
        snapshot_dir: None,
    }
}

/// A broker as it starts on an empty store.
pub(crate) fn broker() -> Broker {
    Broker::restore(broker_config(), [], 1_700_000_000_000).expect("no facts, no damage")
}

/// A folder of its own that goes with the value.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringmq-test-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
