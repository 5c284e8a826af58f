//! REGISTER_BROKER (103) and its siblings: what brokers say of themselves.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultRequestProcessor`.

use std::{
    io::Read,
    net::SocketAddr,
    time::{Duration, Instant},
};

use flate2::read::ZlibDecoder;
use ringmq_protocol::{
    body::{self, DataVersion, KvTable as KvBody, RegisterBrokerBody, TopicConfigTable},
    codes::VERSION_REGISTER_BODY,
    command::Command,
    headers::{BrokerHeartbeatRequest, BrokerIdentity, RegisterBrokerRequest},
};
use tracing::info;

use super::{
    requests::{NameServer, ORDER_NAMESPACE},
    routes::{Address, Peer, Queues, Registration},
};
use crate::control::answer::Answer;

/// Bytes that a deflated registration may inflate to: a quarter of a million topics with the
/// longest names take half.
pub(super) const INFLATED_LEN_MAX: usize = 96 << 20;

pub(super) fn register(
    server: &mut NameServer,
    peer: Peer,
    addr: SocketAddr,
    command: &Command<'_>,
    body: &[u8],
    now: Instant,
) -> Result<Answer, Answer> {
    let header = RegisterBrokerRequest::decode(command)?;
    let masked = i64::from(crc32fast::hash(body) & 0x7fff_ffff);
    if header.body_crc32 != 0 && i64::from(header.body_crc32) != masked {
        return Err(Answer::failed("crc32 not match"));
    }
    let topics = match body {
        [] => None,
        body => Some(table(command.version, header.compressed, body)?),
    };
    let silence_max = header.heartbeat_timeout_ms.and_then(|ms| u64::try_from(ms).ok());
    let registration = Registration {
        address: Address {
            cluster: &header.cluster_name,
            name: &header.broker_name,
            id: header.broker_id,
            addr: &header.broker_addr,
        },
        ha_addr: &header.ha_server_addr,
        silence_max: silence_max.filter(|ms| *ms > 0).map(Duration::from_millis),
        topics: topics.map(queues),
    };
    let is_new = server.routes.query_version(&header.broker_addr, None, now).is_none();
    let master = server
        .routes
        .register(registration, peer, now)
        .map_err(|error| Answer::failed(format!("registration refused: {error}")))?;
    if is_new {
        info!(broker = %header.broker_name, id = header.broker_id, cluster = %header.cluster_name,
              addr = %header.broker_addr, from = %addr, "broker registered");
    }
    let orders = server.kv.namespace(ORDER_NAMESPACE).map(|table| KvBody { table: table.clone() });
    let mut answer = orders.map_or_else(Answer::ok, |orders| Answer::json(&orders));
    if let Some(master) = master {
        answer.ext = vec![("haServerAddr", master.ha_addr), ("masterAddr", master.addr)];
    }
    Ok(answer)
}

/// Reads any of the three forms of a registration's body.
fn table(version: i32, compressed: bool, body: &[u8]) -> Result<TopicConfigTable, Answer> {
    let wrong = |error: body::BodyError| Answer::failed(error.to_string());
    if version < VERSION_REGISTER_BODY {
        return body::decode(body).map_err(wrong);
    }
    let body: RegisterBrokerBody = if compressed {
        RegisterBrokerBody::from_text(&inflate(body)?).map_err(wrong)?
    } else {
        body::decode(body).map_err(wrong)?
    };
    Ok(body.topic_config_serialize_wrapper)
}

fn inflate(body: &[u8]) -> Result<Vec<u8>, Answer> {
    let mut text = Vec::new();
    let bound = u64::try_from(INFLATED_LEN_MAX).unwrap_or(u64::MAX);
    let mut inflater = ZlibDecoder::new(body).take(bound + 1);
    inflater
        .read_to_end(&mut text)
        .map_err(|error| Answer::failed(format!("the compressed body is damaged: {error}")))?;
    if text.len() > INFLATED_LEN_MAX {
        let remark = format!("the body inflates to more than {INFLATED_LEN_MAX} bytes");
        return Err(Answer::failed(remark));
    }
    Ok(text)
}

fn queues(table: TopicConfigTable) -> (DataVersion, Vec<(String, Queues)>) {
    let topics = table.topic_config_table.into_iter().map(|(name, topic)| {
        let queues = Queues {
            read: topic.read_queue_nums,
            write: topic.write_queue_nums,
            perm: topic.perm,
            sys_flag: topic.topic_sys_flag,
        };
        (name, queues)
    });
    (table.data_version, topics.collect())
}

/// UNREGISTER_BROKER (104).
pub(super) fn unregister(server: &mut NameServer, command: &Command<'_>) -> Result<Answer, Answer> {
    let header = BrokerIdentity::decode(command)?;
    server.routes.unregister(&Address {
        cluster: &header.cluster_name,
        name: &header.broker_name,
        id: header.broker_id,
        addr: &header.broker_addr,
    });
    info!(broker = %header.broker_name, addr = %header.broker_addr, "broker unregistered");
    Ok(Answer::ok())
}

/// QUERY_DATA_VERSION (322).
pub(super) fn query_version(
    server: &mut NameServer,
    command: &Command<'_>,
    body: &[u8],
    now: Instant,
) -> Result<Answer, Answer> {
    let header = BrokerIdentity::decode(command)?;
    let asked: DataVersion =
        body::decode(body).map_err(|error| Answer::failed(error.to_string()))?;
    let known = server.routes.query_version(&header.broker_addr, Some(asked), now);
    let mut answer = known.map_or_else(Answer::ok, |known| Answer::json(&known));
    answer.ext = vec![("changed", (known != Some(asked)).to_string())];
    Ok(answer)
}

/// BROKER_HEARTBEAT (904) of 5.x.
pub(super) fn heartbeat(
    server: &mut NameServer,
    command: &Command<'_>,
    now: Instant,
) -> Result<Answer, Answer> {
    let header = BrokerHeartbeatRequest::decode(command)?;
    server.routes.heartbeat(&header.broker_addr, now);
    Ok(Answer::ok())
}
