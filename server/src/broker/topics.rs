//! One thread's view of the topics: the published configuration, and where each queue is.
//!
//! The published catalog is asked once per topic and change. A send or pull then finds its topic in a
//! table of this thread, or with its connection, and its queue by index.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ops::Deref,
    rc::Rc,
    sync::Arc,
};

use arc_swap::{ArcSwap, Cache};
use ringmq_engine::{KeyScope, QueueNo, shard_of};
use ringmq_protocol::names;

use crate::control::{Catalog, Groups, Published, TopicConfig};

/// Queues of a topic that have a slot; others are looked up by key each time.
const SLOTS_MAX: u32 = 1024;

/// A topic as this thread knows it.
#[derive(Debug)]
pub(crate) struct Topic {
    /// As published.
    pub(crate) config: Arc<TopicConfig>,
    /// Whether clients may send to it.
    pub(crate) for_clients: bool,
    /// What the keys of its messages count within.
    pub(crate) keys: KeyScope,
    /// The catalog that `config` was seen in, by the thread's count.
    seen: Cell<u64>,
    shards: u32,
    /// Number of each queue whose shard this thread owns, once it is known.
    slots: Box<[Cell<Option<QueueNo>>]>,
}

impl Topic {
    fn new(config: Arc<TopicConfig>, seen: u64, shards: u32) -> Self {
        let slots = (0..config.queue_nums_max().min(SLOTS_MAX)).map(|_| Cell::new(None)).collect();
        let for_clients = !names::is_not_for_clients(&config.name);
        let keys = KeyScope::new(config.name.as_bytes());
        Self { config, for_clients, keys, seen: Cell::new(seen), shards, slots }
    }

    /// The shard of a queue.
    pub(crate) fn shard(&self, queue_id: i32) -> u32 {
        shard_of(self.config.name.as_bytes(), queue_id.cast_unsigned(), self.shards)
    }

    /// Where the queue's number is kept, if there is a slot for it.
    pub(crate) fn slot(&self, queue_id: i32) -> Option<&Cell<Option<QueueNo>>> {
        self.slots.get(usize::try_from(queue_id).ok()?)
    }
}

/// Leads from the shared snapshots to one of them.
struct CatalogOf(Arc<Published>);
struct GroupsOf(Arc<Published>);

impl Deref for CatalogOf {
    type Target = ArcSwap<Catalog>;
    fn deref(&self) -> &Self::Target {
        &self.0.catalog
    }
}

impl Deref for GroupsOf {
    type Target = ArcSwap<Groups>;
    fn deref(&self) -> &Self::Target {
        &self.0.groups
    }
}

/// One thread's view of topics and groups.
pub(crate) struct Topics {
    catalog: RefCell<Cache<CatalogOf, Arc<Catalog>>>,
    groups: RefCell<Cache<GroupsOf, Arc<Groups>>>,
    /// The catalog seen last. The cache holds it, so no other has its address.
    last: Cell<*const Catalog>,
    /// Rises when another catalog is seen.
    seen: Cell<u64>,
    known: RefCell<HashMap<Arc<str>, Rc<Topic>, foldhash::fast::RandomState>>,
    shards: u32,
}

impl Topics {
    pub(crate) fn new(published: &Arc<Published>, shards: u32) -> Self {
        Self {
            catalog: RefCell::new(Cache::new(CatalogOf(published.clone()))),
            groups: RefCell::new(Cache::new(GroupsOf(published.clone()))),
            last: Cell::new(std::ptr::null()),
            seen: Cell::new(0),
            known: RefCell::default(),
            shards,
        }
    }

    fn with_catalog<T>(&self, look: impl FnOnce(&Arc<Catalog>) -> T) -> T {
        let mut cache = self.catalog.borrow_mut();
        let catalog = cache.load();
        if !std::ptr::eq(self.last.replace(Arc::as_ptr(catalog)), Arc::as_ptr(catalog)) {
            self.seen.set(self.seen.get() + 1);
        }
        look(catalog)
    }

    /// The newest groups.
    pub(crate) fn groups(&self) -> Arc<Groups> {
        self.groups.borrow_mut().load().clone()
    }

    /// Whether the broker may be written, and read.
    pub(crate) fn permission(&self) -> (bool, bool) {
        self.with_catalog(|catalog| (catalog.writable(), catalog.readable()))
    }

    /// Whether `topic` is what the newest catalog has.
    pub(crate) fn is_current(&self, topic: &Topic) -> bool {
        self.with_catalog(|_| ());
        topic.seen.get() == self.seen.get()
    }

    /// The topic of this name, if there is one.
    pub(crate) fn topic(&self, name: &str) -> Option<Rc<Topic>> {
        let config = self.with_catalog(|catalog| catalog.topic(name).cloned());
        let mut known = self.known.borrow_mut();
        let Some(config) = config else {
            known.remove(name);
            return None;
        };
        if let Some(topic) = known.get(name)
            && Arc::ptr_eq(&topic.config, &config)
        {
            topic.seen.set(self.seen.get());
            return Some(topic.clone());
        }
        let topic = Rc::new(Topic::new(config, self.seen.get(), self.shards));
        known.insert(topic.config.name.clone(), topic.clone());
        Some(topic)
    }
}
