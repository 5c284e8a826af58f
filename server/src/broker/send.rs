//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).
//!
//! The checks, their order and their codes are those of RocketMQ 4.9.8 (facts: remoting 3.1); 5.x
//! clients get 5.x's code for parameters out of range. A message goes from the receive buffer into
//! the open group in one copy; for a shard of another thread it is encoded first.
//!
//! Source: `AbstractSendMessageProcessor.msgCheck`, `SendMessageProcessor`.

use std::{ops::Range, rc::Rc};

use ringmq_engine::{AppendError, Appended, EpochMillis, Record};
use ringmq_protocol::{
    batch,
    codes::{request, response},
    command::Command,
    headers::SendRequest,
    limits::check_message,
    names,
    properties::{self, name},
    record::{self, MessageParts, PropertiesParts, sys_flag},
    template::MatchedSend,
};
use tokio::sync::oneshot;

use super::{
    Conn, Op, QueueName, Reply, Served, Ticket, Wait, answer, keys,
    record::{Alike, BatchMessage, Message, Parcel, Said, host},
    stop::{Stop, failed},
    templates::{KnownSend, Shaped, Stored},
    topics::Topic,
};
use crate::{
    control::{FilterType, NewTopic, ToControl},
    thread::{LocalShard, Pending, Place, Thread},
};

/// System flag bits that a client may set: compression and its kind, several tags. The others would
/// make records that no consumer gets, or that the broker's own bits contradict.
const CLIENT_BITS_REFUSED: i32 = sys_flag::TRANSACTION_MASK
    | sys_flag::BORN_HOST_V6
    | sys_flag::STORE_HOST_V6
    | sys_flag::NEED_UNWRAP
    | sys_flag::INNER_BATCH;

/// How many times the longest body the records of one batch may take. Messages of a few bytes are
/// much longer as records than as they were sent.
const BATCH_GROWTH_MAX: usize = 4;

/// Properties of one batch's header, at most.
const BATCH_PAIRS_MAX: usize = 32;

/// Records that are durable.
#[derive(Debug)]
pub(crate) struct Sent {
    /// As requested, or as chosen where the request left it open.
    pub(crate) queue_id: i32,
    /// Of the first record, in messages.
    pub(crate) first_queue_offset: i64,
    first_log_offset: i64,
    /// Length of each record but the last, where there are several. They lie back to back.
    lens: Box<[u32]>,
}

impl Sent {
    fn new(queue_id: i32, appended: &Appended, lens: impl ExactSizeIterator<Item = usize>) -> Self {
        let others = lens.len().saturating_sub(1);
        let lens = lens.take(others).map(|len| u32::try_from(len).unwrap_or(u32::MAX)).collect();
        Self {
            queue_id,
            first_queue_offset: appended.first_queue_offset.get(),
            first_log_offset: appended.first_log_offset.get(),
            lens,
        }
    }

    /// Position of the record in the log, if it is alone.
    pub(crate) fn only_log_offset(&self) -> Option<i64> {
        self.lens.is_empty().then_some(self.first_log_offset)
    }

    /// Positions of all records in the log.
    pub(crate) fn log_offsets(&self) -> impl Iterator<Item = i64> {
        let behind = self.lens.iter().scan(self.first_log_offset, |at, len| {
            *at += i64::from(*len);
            Some(*at)
        });
        std::iter::once(self.first_log_offset).chain(behind)
    }
}

/// Memory that is used again for every send of the thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The decoded properties of the header.
    properties: Vec<u8>,
    key: Vec<u8>,
    places: Vec<(usize, usize, i64)>,
}

impl Scratch {
    /// Where a key is built.
    pub(crate) fn key(&mut self) -> &mut Vec<u8> {
        &mut self.key
    }
}

/// Takes a send.
pub(crate) fn serve(
    thread: &Thread,
    conn: &Rc<Conn>,
    ticket: Ticket,
    command: &Command<'_>,
    body: &[u8],
) -> Served {
    let ticket = Ticket { send: true, ..ticket };
    let request = match SendRequest::decode(command) {
        Ok(request) => request,
        Err(error) => return answer::refuse(thread, conn, &ticket, &error.into()),
    };
    let own = MatchedSend {
        opaque: command.opaque,
        queue_id: request.queue_id,
        born_timestamp_ms: request.born_timestamp_ms,
        properties: request.properties,
    };
    let is_batch = command.code == request::SEND_BATCH_MESSAGE || request.batch;
    let (request, version) = (&request, command.version);
    Send { thread, conn, ticket, request, own, shaped: None, version, body, is_batch }.serve()
}

/// Takes a send that looks like an earlier one.
pub(crate) fn serve_known(
    thread: &Thread,
    conn: &Rc<Conn>,
    known: &KnownSend<'_>,
    body: &[u8],
) -> Served {
    let KnownSend { template, own, shaped } = *known;
    let ticket = Ticket::of_known(conn.context.conn, template.head(), own.opaque);
    let ticket = Ticket { send: true, ..ticket };
    let (request, version) = (template.request(), template.head().version);
    let is_batch = template.head().code == request::SEND_BATCH_MESSAGE || request.batch;
    Send { thread, conn, ticket, request, own, shaped, version, body, is_batch }.serve()
}

/// One send on its way through the checks.
struct Send<'a> {
    thread: &'a Thread,
    conn: &'a Rc<Conn>,
    ticket: Ticket,
    /// What the send has in common with others that look like it; see `own` for the rest.
    request: &'a SendRequest<'a>,
    own: MatchedSend<'a>,
    /// The properties, where it is known how they will be stored.
    shaped: Option<Shaped<'a>>,
    version: i32,
    body: &'a [u8],
    is_batch: bool,
}

impl Send<'_> {
    fn serve(&self) -> Served {
        match self.run() {
            Ok(()) => Served::Done,
            Err(stop) => stop.serve(self.thread, self.conn, &self.ticket),
        }
    }

    fn run(&self) -> Result<(), Stop> {
        let topic = self.topic()?;
        let config = &topic.config;
        if config.order && !self.thread.topics.permission().0 {
            return Err(failed(response::NO_PERMISSION, "the broker may not be written"));
        }
        if !topic.for_clients {
            return Err(failed(
                response::NO_PERMISSION,
                format!("Sending message to topic[{}] is forbidden.", config.name),
            ));
        }
        let queue_id = self.queue_id(&topic)?;
        let mut scratch = self.thread.scratch.borrow_mut();
        let Scratch { properties, key, .. } = &mut *scratch;
        if let Some(shaped) = self.shaped
            && !self.is_batch
            && names::group_of_retry_topic(&topic.config.name).is_none()
        {
            let message = self.message(&topic, queue_id, shaped.stored())?;
            return self.store(&topic, queue_id, &[message], key);
        }
        properties.clear();
        if let Some(text) = &self.own.properties {
            text.append_to(properties);
        }
        let (topic, queue_id) = match self.dead_letters(&topic)? {
            Some(dead_letters) => (dead_letters, 0),
            None => {
                self.check_not_waiting(properties)?;
                (topic, queue_id)
            }
        };
        if self.is_batch {
            self.store_batch(&topic, queue_id, properties, key)
        } else {
            let message = self.message(&topic, queue_id, self.stored_form(properties))?;
            self.store(&topic, queue_id, &[message], key)
        }
    }

    /// The topic, which may have to be created first.
    fn topic(&self) -> Result<Rc<Topic>, Stop> {
        let topics = &self.thread.topics;
        let name = &*self.request.topic;
        if let Some(last) = &*self.conn.state.last_topic.borrow()
            && *last.config.name == *name
            && topics.is_current(last)
        {
            return Ok(last.clone());
        }
        names::validate_topic(name)
            .map_err(|error| failed(self.ticket.invalid_parameter(), error.to_string()))?;
        if names::is_not_for_clients(name) {
            return Err(failed(
                response::NO_PERMISSION,
                format!("Sending message to topic[{name}] is forbidden."),
            ));
        }
        let Some(topic) = topics.topic(name) else {
            let how = match names::group_of_retry_topic(name) {
                Some(_) => NewTopic::OfGroup { queue_nums: 1, unit_mode: self.request.unit_mode },
                None => NewTopic::FromTemplate {
                    default_topic: (&*self.request.default_topic).into(),
                    queue_nums: self.request.default_topic_queue_nums,
                    unit_mode: self.request.unit_mode,
                },
            };
            return Err(self.create(name, how));
        };
        *self.conn.state.last_topic.borrow_mut() = Some(topic.clone());
        Ok(topic)
    }

    /// Asks for a topic; the send is offered again when it is there.
    fn create(&self, name: &str, how: NewTopic) -> Stop {
        let (reply, created) = oneshot::channel();
        let question = ToControl::CreateTopic { topic: name.into(), how, reply };
        Stop::until(self.thread, question, Wait::Topic(self.ticket, created))
    }

    fn queue_id(&self, topic: &Topic) -> Result<i32, Stop> {
        let asked = self.own.queue_id;
        let queues = topic.config.queue_nums_max();
        match u32::try_from(asked) {
            Ok(id) if id < queues => Ok(asked),
            Err(_) if topic.config.write_queue_nums > 0 => {
                let turn = self.thread.next_turn() % topic.config.write_queue_nums;
                Ok(turn.cast_signed())
            }
            _ => Err(failed(
                self.ticket.invalid_parameter(),
                format!("request queueId[{asked}] is illegal, the topic has {queues} queues"),
            )),
        }
    }

    /// The dead-letter topic, if this is a retry that has been tried often enough.
    fn dead_letters(&self, topic: &Topic) -> Result<Option<Rc<Topic>>, Stop> {
        let Some(group) = names::group_of_retry_topic(&topic.config.name) else {
            return Ok(None);
        };
        let view = self.thread.topics.groups().group(group).cloned();
        let Some(config) = view.and_then(|view| view.config.clone()) else {
            return Err(Stop::for_group(self.thread, &self.ticket, group));
        };
        // Older clients send the field without meaning it. Source: `MQVersion.V3_4_9`.
        const HONOURED_SINCE: i32 = 121;
        let asked = self.request.max_reconsume_times.filter(|_| self.version >= HONOURED_SINCE);
        let max = asked.unwrap_or(config.retry_max_times);
        let times = self.request.reconsume_times;
        let over = if self.ticket.is_5 { times > max } else { times >= max };
        if !over {
            return Ok(None);
        }
        let name = names::dlq_topic(group);
        match self.thread.topics.topic(&name) {
            Some(topic) => Ok(Some(topic)),
            None => {
                let how = NewTopic::OfGroup { queue_nums: 1, unit_mode: false };
                Err(self.create(&name, how))
            }
        }
    }

    /// Refuses what would have to wait before it is delivered, rather than delivering it at once.
    fn check_not_waiting(&self, properties: &[u8]) -> Result<(), Stop> {
        let transactional =
            self.request.sys_flag & sys_flag::TRANSACTION_MASK != 0 && self.is_batch;
        for (name, value) in properties::iter(properties) {
            let delayed = name == name::DELAY.as_bytes() && delay_level(value)? > 0;
            let half = name == name::TRAN_MSG.as_bytes() && value == b"true";
            let timed = self.ticket.is_5 && name.starts_with(b"TIMER_DEL");
            if self.is_batch && (delayed || half) {
                return Err(failed(
                    response::MESSAGE_ILLEGAL,
                    "a batch can be neither delayed nor transactional",
                ));
            }
            if delayed || timed {
                return Err(failed(
                    response::SYSTEM_ERROR,
                    "delayed messages are not available on this broker",
                ));
            }
            if half {
                return Err(failed(
                    response::SYSTEM_ERROR,
                    "transactional messages are not available on this broker",
                ));
            }
        }
        if transactional {
            return Err(failed(
                response::MESSAGE_ILLEGAL,
                "a batch can be neither delayed nor transactional",
            ));
        }
        Ok(())
    }

    fn sys_flag(&self, topic: &Topic) -> i32 {
        let many = match topic.config.filter_type {
            FilterType::MultiTag => sys_flag::MULTI_TAGS,
            FilterType::SingleTag => 0,
        };
        self.request.sys_flag & !CLIENT_BITS_REFUSED | many
    }

    fn parts<'m>(
        &self,
        topic: &'m Topic,
        queue_id: i32,
        (flag, body): (i32, &'m [u8]),
        properties: PropertiesParts<'m>,
    ) -> Result<MessageParts<'m>, Stop> {
        let len_max = self.thread.shared.config.message_len_max;
        let name = topic.config.name.as_bytes();
        check_message(name.len(), properties.len(), body.len(), len_max)?;
        Ok(MessageParts {
            queue_id,
            flag,
            sys_flag: self.sys_flag(topic),
            born_timestamp_ms: self.own.born_timestamp_ms,
            born_host: host(self.conn.context.peer_v4()),
            store_host: self.thread.shared.store_host,
            reconsume_times: self.request.reconsume_times,
            prepared_transaction_offset: 0,
            body,
            body_crc: None,
            topic: name,
            properties,
        })
    }

    /// Properties as a message of its own keeps them.
    fn stored_form<'m>(&'m self, text: &'m [u8]) -> Stored<'m> {
        let (before, behind) = properties::without(text, name::WAIT);
        let parts = PropertiesParts::default().with(before).with(behind);
        let parts = parts.with_pair(&self.thread.shared.cluster_pair);
        Stored { parts, said: Said::of(text) }
    }

    fn message<'m>(
        &self,
        topic: &'m Topic,
        queue_id: i32,
        Stored { parts, said }: Stored<'m>,
    ) -> Result<Message<'m>, Stop>
    where
        Self: 'm,
    {
        if self.body.is_empty() && self.ticket.is_5 {
            return Err(failed(response::SYSTEM_ERROR, "the message body is empty"));
        }
        let parts = self.parts(topic, queue_id, (self.request.flag, self.body), parts)?;
        Ok(Message { parts, said, scope: topic.keys })
    }

    fn store_batch(
        &self,
        topic: &Topic,
        queue_id: i32,
        header: &[u8],
        key: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let len_max = self.thread.shared.config.message_len_max;
        check_message(0, 0, self.body.len(), len_max)?;
        if names::group_of_retry_topic(&topic.config.name).is_some() && self.ticket.is_5 {
            return Err(failed(response::MESSAGE_ILLEGAL, "a retry topic takes no batches"));
        }
        let mut suffixes = Suffixes::new(header, &self.thread.shared.cluster_pair)?;
        let (mut items, mut stored_len) = (Vec::new(), 0);
        let mut known: Option<(Alike<'_>, usize)> = None;
        for item in batch::items(self.body) {
            let item = item.map_err(|error| failed(response::SYSTEM_ERROR, error.to_string()))?;
            let alike = known
                .as_ref()
                .and_then(|(alike, suffix)| Some((alike.read(item.properties)?, *suffix)));
            let (said, suffix) = match alike {
                Some(alike) => alike,
                None => {
                    self.check_not_waiting(item.properties)?;
                    let said = Said::of(item.properties);
                    let suffix = suffixes.place_for(item.properties);
                    known = Alike::new(item.properties, said).map(|alike| (alike, suffix));
                    (said, suffix)
                }
            };
            stored_len += record::OVERHEAD_V4 + topic.config.name.len();
            stored_len += suffixes.text(suffix).len();
            stored_len += item.body.len() + item.properties.len() + 1;
            check_message(0, 0, stored_len, BATCH_GROWTH_MAX * len_max)?;
            items.push((item, said, suffix));
        }
        if items.is_empty() {
            return Err(failed(response::SYSTEM_ERROR, "the batch is empty"));
        }
        let common = self.parts(topic, queue_id, (0, &[]), PropertiesParts::default())?;
        let of_all: Vec<_> = suffixes.texts().map(|text| (text, Said::of(text))).collect();
        let mut messages = Vec::with_capacity(items.len());
        for (item, said, suffix) in items {
            let (text, of_all) = of_all.get(suffix).expect("the loop before has made it");
            let message = BatchMessage::new(&common, (item, said), (text, of_all), topic.keys);
            let properties_len = message.properties.len();
            check_message(common.topic.len(), properties_len, item.body.len(), len_max)?;
            messages.push(message);
        }
        self.store(topic, queue_id, &messages, key)
    }

    fn store<R: Record>(
        &self,
        topic: &Topic,
        queue_id: i32,
        messages: &[R],
        key: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let thread = self.thread;
        match thread.place(topic.shard(queue_id)) {
            Place::Here(index, shard) => {
                let appended = shard.append(topic, queue_id, messages, key, thread.now());
                let appended = match appended {
                    Ok(appended) => appended,
                    Err(AppendError::Backlogged) => {
                        return Err(Stop::Serve(Served::Again(Wait::Room(index))));
                    }
                    Err(error) => return Err(error.into()),
                };
                if !self.ticket.oneway {
                    let lens = messages.iter().map(Record::len);
                    let sent = Sent::new(queue_id, &appended, lens);
                    shard.answer_at(
                        appended.sequence,
                        self.ticket,
                        Pending::Reply(Reply::Sent(sent)),
                    );
                }
                Ok(())
            }
            Place::On(other) => {
                let Some(credit) = thread.credit(self.conn, other) else {
                    return Err(Stop::Serve(Served::Again(Wait::Credit(other))));
                };
                let queue = QueueName { topic: topic.config.name.clone(), queue_id };
                let op = Op::Append { queue, parcel: Parcel::pack(messages) };
                thread.ask(credit, topic.shard(queue_id), self.ticket, op);
                Ok(())
            }
        }
    }
}

/// The delay level of a message.
fn delay_level(value: &[u8]) -> Result<i64, Stop> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.parse().map_err(|_| failed(response::SYSTEM_ERROR, "the property DELAY is no number"))
}

/// What is put behind the properties of a batch's items: the header's pairs that the item does not
/// have itself, and the cluster.
struct Suffixes<'a> {
    pairs: Vec<(&'a [u8], &'a [u8])>,
    cluster: &'a [u8],
    text: Vec<u8>,
    /// The suffixes made so far, by which pairs they leave out.
    made: Vec<(u32, Range<usize>)>,
}

impl<'a> Suffixes<'a> {
    fn new(header: &'a [u8], cluster: &'a [u8]) -> Result<Self, Stop> {
        let pairs: Vec<_> = properties::iter(header).take(BATCH_PAIRS_MAX + 1).collect();
        if pairs.len() > BATCH_PAIRS_MAX {
            return Err(failed(response::MESSAGE_ILLEGAL, "a batch has at most 32 properties"));
        }
        Ok(Self { pairs, cluster, text: Vec::new(), made: Vec::new() })
    }

    /// Makes or finds the suffix for an item with these properties, and gives its place among all.
    fn place_for(&mut self, item: &[u8]) -> usize {
        let mut left_out = 0_u32;
        for (index, (name, _)) in self.pairs.iter().enumerate() {
            if properties::iter(item).any(|(known, _)| known == *name) {
                left_out |= 1 << index;
            }
        }
        if let Some(place) = self.made.iter().position(|(mask, _)| *mask == left_out) {
            return place;
        }
        let start = self.text.len();
        for (index, (name, value)) in self.pairs.iter().enumerate() {
            if left_out & 1 << index == 0 {
                self.text.extend_from_slice(name);
                self.text.push(properties::NAME_SEPARATOR);
                self.text.extend_from_slice(value);
                self.text.push(properties::PAIR_SEPARATOR);
            }
        }
        self.text.extend_from_slice(self.cluster);
        self.made.push((left_out, start..self.text.len()));
        self.made.len() - 1
    }

    /// The suffixes made so far, by their places.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.made.iter().map(|(_, range)| self.text.get(range.clone()).unwrap_or_default())
    }

    fn text(&self, place: usize) -> &[u8] {
        self.texts().nth(place).unwrap_or_default()
    }
}

/// Stores what another thread sent. `Err` gives the request back: the shard has no room now.
pub(crate) fn append_parcel(
    thread: &Thread,
    shard: &LocalShard,
    ticket: Ticket,
    (queue, parcel): (QueueName, Parcel),
    now: EpochMillis,
) -> Result<Option<Reply>, (QueueName, Parcel)> {
    let mut scratch = thread.scratch.borrow_mut();
    let Scratch { key, places, .. } = &mut *scratch;
    parcel.unpack(places);
    let records = parcel.records(places);
    keys::queue(&queue.topic, queue.queue_id, key);
    let exists = || thread.topics.topic(&queue.topic).is_some();
    match shard.append_by_key(key, &records, exists, now) {
        Ok(_) if ticket.oneway => Ok(Some(Reply::Nothing)),
        Ok(appended) => {
            let sent = Sent::new(queue.queue_id, &appended, records.iter().map(Record::len));
            shard.answer_at(appended.sequence, ticket, Pending::Reply(Reply::Sent(sent)));
            Ok(None)
        }
        Err(AppendError::Backlogged) => Err((queue, parcel)),
        Err(error) => Ok(Some(Reply::Failed(error.into()))),
    }
}
