//! What a name server is asked, and what it answers.
//!
//! Bodies are standard JSON with quoted keys whatever the version of whoever asks: every client reads
//! that, and Go needs it without blanks.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultRequestProcessor`, `ClientRequestProcessor`.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use ringmq_protocol::{
    body::{
        self, BrokerData, BrokerMemberGroup, ClusterInfo, KvTable as KvBody, QueueData, TopicList,
        TopicRouteData,
    },
    codes::{VERSION_5_0_0, request, response},
    command::Command,
    headers::{
        BrokerMemberGroupRequest, BrokerNameRequest, ClusterRequest, KvKeyRequest,
        KvNamespaceRequest,
    },
};

use super::{
    kv::{KvTable, NotChanged},
    register,
    routes::{Peer, Queues, RouteBroker, RouteTable, UnitTopics},
};
use crate::control::answer::{Answer, either, required};

/// KV namespace of the queues of ordered topics. Source: `NamesrvUtil`.
pub(super) const ORDER_NAMESPACE: &str = "ORDER_TOPIC_CONFIG";
/// The only setting that can be changed while the name server runs.
const ORDER_SETTING: &str = "orderMessageEnable";
/// Settings that no request may change. Source: `configBlackList` of 4.9.8.
const FIXED_SETTINGS: [&str; 4] =
    ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];

/// A name server's state.
#[derive(Debug, Default)]
pub struct NameServer {
    pub(super) routes: RouteTable,
    pub(super) kv: Arc<KvTable>,
    order_messages: bool,
}

impl NameServer {
    /// A name server without brokers. `order_messages`: routes of ordered topics name their queues.
    #[must_use]
    pub fn new(kv: KvTable, order_messages: bool) -> Self {
        Self { routes: RouteTable::default(), kv: Arc::new(kv), order_messages }
    }

    /// Handles one request. A oneway request is handled too, and its answer dropped by the caller.
    /// Those that change the KV configuration are not for this: they wait for the disk.
    pub(crate) fn handle(
        &mut self,
        peer: Peer,
        addr: SocketAddr,
        command: &Command<'_>,
        body: &[u8],
        now: Instant,
    ) -> Answer {
        either(match command.code {
            request::GET_ROUTEINFO_BY_TOPIC => self.route(command),
            request::REGISTER_BROKER => register::register(self, peer, addr, command, body, now),
            request::UNREGISTER_BROKER => register::unregister(self, command),
            request::QUERY_DATA_VERSION => register::query_version(self, command, body, now),
            request::BROKER_HEARTBEAT => register::heartbeat(self, command, now),
            request::GET_BROKER_CLUSTER_INFO => Ok(self.cluster_info(command.version)),
            request::GET_BROKER_MEMBER_GROUP => self.member_group(command),
            request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => Ok(topic_list(self.routes.topics())),
            request::GET_TOPICS_BY_CLUSTER => self.topics_of_cluster(command),
            request::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics()),
            request::GET_UNIT_TOPIC_LIST => Ok(self.unit_topics(UnitTopics::Unit)),
            request::GET_HAS_UNIT_SUB_TOPIC_LIST => Ok(self.unit_topics(UnitTopics::UnitSub)),
            request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => {
                Ok(self.unit_topics(UnitTopics::UnitSubNotUnit))
            }
            request::WIPE_WRITE_PERM_OF_BROKER => {
                let name = BrokerNameRequest::decode(command).map(|header| header.broker_name);
                let count = name.map(|name| self.routes.wipe_write_perm(&name));
                count.map(|count| Answer::with("wipeTopicCount", count)).map_err(Answer::from)
            }
            request::ADD_WRITE_PERM_OF_BROKER => {
                let name = BrokerNameRequest::decode(command).map(|header| header.broker_name);
                let count = name.map(|name| self.routes.add_write_perm(&name));
                count.map(|count| Answer::with("addTopicCount", count)).map_err(Answer::from)
            }
            request::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(command),
            request::REGISTER_TOPIC_IN_NAMESRV => self.add_topic(command, body),
            request::GET_KV_CONFIG => self.kv_value(command),
            request::GET_KVLIST_BY_NAMESPACE => self.kv_list(command),
            request::UPDATE_NAMESRV_CONFIG => self.update_settings(body),
            request::GET_NAMESRV_CONFIG => Ok(self.settings()),
            code => Ok(Answer::unsupported(code)),
        })
    }

    fn route(&self, command: &Command<'_>) -> Result<Answer, Answer> {
        let topic = required(command, "topic")?;
        let Some(route) = self.routes.route(&topic) else {
            let remark = format!(
                "No topic route info in name server for the topic: {topic}\n\
                 See http://rocketmq.apache.org/docs/faq/ for further details."
            );
            return Err(Answer::error(response::TOPIC_NOT_EXIST, remark));
        };
        let order = self.order_messages.then(|| self.kv.get(ORDER_NAMESPACE, &topic)).flatten();
        let brokers = route.brokers.iter();
        Ok(Answer::json(&TopicRouteData {
            broker_datas: brokers.map(|broker| broker_data(broker, command.version)).collect(),
            order_topic_conf: order.map(str::to_owned),
            queue_datas: route.queues.iter().map(queue_data).collect(),
            ..TopicRouteData::default()
        }))
    }

    fn cluster_info(&self, version: i32) -> Answer {
        let clusters = self.routes.clusters().iter();
        Answer::json(&ClusterInfo {
            broker_addr_table: self
                .routes
                .brokers()
                .map(|broker| (broker.name.to_owned(), broker_data(&broker, version)))
                .collect(),
            cluster_addr_table: clusters
                .map(|(cluster, names)| (cluster.clone(), names.iter().cloned().collect()))
                .collect(),
        })
    }

    fn member_group(&self, command: &Command<'_>) -> Result<Answer, Answer> {
        let header = BrokerMemberGroupRequest::decode(command)?;
        // This form of a broker's data is older than 5.x, whoever asks.
        let known = self.routes.broker(&header.broker_name);
        let known = known.map(|broker| broker_data(&broker, 0));
        let broker_member_group = Some(known.unwrap_or_else(|| BrokerData {
            broker_name: header.broker_name.into_owned(),
            cluster: header.cluster_name.into_owned(),
            ..BrokerData::default()
        }));
        Ok(Answer::json(&BrokerMemberGroup { broker_member_group }))
    }

    fn topics_of_cluster(&self, command: &Command<'_>) -> Result<Answer, Answer> {
        let cluster = ClusterRequest::decode(command)?.cluster;
        Ok(topic_list(self.routes.topics_of_cluster(&cluster)))
    }

    fn unit_topics(&self, which: UnitTopics) -> Answer {
        topic_list(self.routes.unit_topics(which))
    }

    /// Cluster and broker names, which are topics of their own, and the address of some broker.
    fn system_topics(&self) -> Answer {
        let clusters = self.routes.clusters().iter();
        let names = clusters.flat_map(|(cluster, names)| std::iter::once(cluster).chain(names));
        let addr = self.routes.brokers().find_map(|broker| broker.addrs.values().next());
        Answer::json(&TopicList {
            broker_addr: addr.cloned(),
            topic_list: names.cloned().collect(),
        })
    }

    fn delete_topic(&mut self, command: &Command<'_>) -> Result<Answer, Answer> {
        let topic = required(command, "topic")?;
        let cluster = command.ext.get("clusterName").map(|cluster| cluster.to_str());
        self.routes.delete_topic(&topic, cluster.as_deref().filter(|name| !name.is_empty()));
        Ok(Answer::ok())
    }

    /// Of 5.x; some old clients mean something else by this code and send no such body.
    fn add_topic(&mut self, command: &Command<'_>, body: &[u8]) -> Result<Answer, Answer> {
        let topic = required(command, "topic")?;
        let route: TopicRouteData =
            body::decode(body).map_err(|error| Answer::failed(error.to_string()))?;
        let queues = route.queue_datas.into_iter().map(|queue| {
            let queues = Queues {
                read: queue.read_queue_nums,
                write: queue.write_queue_nums,
                perm: queue.perm,
                sys_flag: queue.topic_sys_flag,
            };
            (queue.broker_name, queues)
        });
        if !self.routes.add_topic(&topic, queues.collect()) {
            return Err(Answer::failed("the topic has a name that is not allowed"));
        }
        Ok(Answer::ok())
    }

    /// The KV configuration, to make a changed one of.
    pub(super) fn kv(&self) -> Arc<KvTable> {
        Arc::clone(&self.kv)
    }

    /// Takes a changed KV configuration, and says how it went.
    pub(super) fn kv_changed(&mut self, changed: Result<Option<KvTable>, NotChanged>) -> Answer {
        match changed {
            Ok(Some(kv)) => self.kv = Arc::new(kv),
            Ok(None) => {}
            Err(NotChanged::Full) => return Answer::failed("the KV configuration is full"),
            Err(NotChanged::NotSaved(error)) => {
                return Answer::failed(format!("the KV configuration cannot be written: {error}"));
            }
        }
        Answer::ok()
    }

    fn kv_value(&self, command: &Command<'_>) -> Result<Answer, Answer> {
        let KvKeyRequest { namespace, key } = KvKeyRequest::decode(command)?;
        match self.kv.get(&namespace, &key) {
            Some(value) => Ok(Answer::with("value", value)),
            None => {
                let remark = format!("No config item, Namespace: {namespace} Key: {key}");
                Err(Answer::error(response::QUERY_NOT_FOUND, remark))
            }
        }
    }

    fn kv_list(&self, command: &Command<'_>) -> Result<Answer, Answer> {
        let namespace = KvNamespaceRequest::decode(command)?.namespace;
        match self.kv.namespace(&namespace) {
            Some(table) => Ok(Answer::json(&KvBody { table: table.clone() })),
            None => {
                let remark = format!("No config item, Namespace: {namespace}");
                Err(Answer::error(response::QUERY_NOT_FOUND, remark))
            }
        }
    }

    /// Takes lines of `key=value`. Settings that this name server does not have are ignored, as
    /// upstream ignores unknown ones. They last until it ends.
    fn update_settings(&mut self, body: &[u8]) -> Result<Answer, Answer> {
        let text = std::str::from_utf8(body).map_err(|error| Answer::failed(error.to_string()))?;
        let pairs = || {
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            lines.filter_map(|line| line.split_once('='))
        };
        if pairs().any(|(key, _)| FIXED_SETTINGS.contains(&key.trim())) {
            let remark = "Can not update config in black list.";
            return Err(Answer::error(response::NO_PERMISSION, remark));
        }
        for (_, value) in pairs().filter(|(key, _)| key.trim() == ORDER_SETTING) {
            self.order_messages = value.trim() == "true";
        }
        Ok(Answer::ok())
    }

    fn settings(&self) -> Answer {
        Answer::body(format!("{ORDER_SETTING}={}\n", self.order_messages).into_bytes())
    }
}

fn topic_list<'a>(topics: impl Iterator<Item = &'a str>) -> Answer {
    Answer::json(&TopicList { broker_addr: None, topic_list: topics.map(str::to_owned).collect() })
}

/// A broker's data for a requester of this version.
fn broker_data(broker: &RouteBroker<'_>, version: i32) -> BrokerData {
    BrokerData {
        // Upstream's name server of 5.x always says so, and rocketmq-rust reads no route without it.
        enable_acting_master: (VERSION_5_0_0 <= version).then_some(false),
        broker_addrs: broker.addrs.clone(),
        broker_name: broker.name.to_owned(),
        cluster: broker.cluster.to_owned(),
        ..BrokerData::default()
    }
}

fn queue_data((name, queues): &(&str, Queues)) -> QueueData {
    QueueData {
        broker_name: (*name).to_owned(),
        perm: queues.perm,
        read_queue_nums: queues.read,
        topic_sys_flag: queues.sys_flag,
        write_queue_nums: queues.write,
    }
}

#[cfg(test)]
mod tests;
